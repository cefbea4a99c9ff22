"""`python -m tailrace.testing.servers`: fetch what the servers need, so that no test waits for a download.

`python -m tailrace.testing.servers postgres` starts a PostgreSQL to try things out, says how to reach it from a shell,
and removes it at Ctrl-C.
"""

import signal
import sys

from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.chromium import axe, chromium
from tailrace.testing.servers.kafka import fetch_kafka
from tailrace.testing.servers.nats import nats_program
from tailrace.testing.servers.opensearch import fetch_opensearch
from tailrace.testing.servers.postgres_binaries import MAJORS, installation
from tailrace.testing.servers.prometheus import promtool
from tailrace.testing.servers.redis import redis_program


def fetch() -> None:
    fetch_kafka()
    fetch_opensearch()
    nats_program()
    redis_program()
    promtool()
    chromium()
    axe()
    for major in MAJORS:
        installation(major).program("postgres")


def lend_postgres() -> None:
    """Until SIGINT or SIGTERM."""
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the server has threads, which would get them
    with PostgresServer() as server:
        print(f"export PATH={server.bin('psql').parent}:$PATH")
        print(f"export SHOP_DSN={server.dsn()}", flush=True)
        print("Copy these lines to another terminal. Ctrl-C ends the server and removes its data.", file=sys.stderr)
        signal.sigwait(ends)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            fetch()
        case ["postgres"]:
            lend_postgres()
        case _:
            sys.exit("usage: python -m tailrace.testing.servers [postgres]")
