"""How fast Tailrace is and what it costs, against PostgreSQL's own `pg_recvlogical` on the same WAL.

    python -m benchmarks                    tap, road, latency and idle on 1,000,000 rows
    python -m benchmarks tap --rows 100000  one of them, smaller
    python -m benchmarks --all              memory too, which takes minutes

`docs/benchmarks.md` says what is measured and what is not.
"""
