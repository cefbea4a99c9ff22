"""What PostgreSQL adds to records, in SQL over the columns of a change."""

from __future__ import annotations

from tailrace.contracts import Member, Provenance

_LSN = "substring_index(position, '#', 1)"
_DIGITS = f"concat(substring_index({_LSN}, '/', 1), lpad(substring_index({_LSN}, '/', -1), 8, '0'))"
LSN_SQL = f"conv({_DIGITS}, 16, 10)"
"""A position `X/Y` (of a snapshot's row `X/Y#chunk`) as the decimal number Debezium calls `lsn`."""
TRANSACTION_SQL = "cast(try_cast(tx_id as bigint) as string)"

_LSN_MEMBER = Member("lsn", LSN_SQL, "number")
_TRANSACTION = Member("txId", TRANSACTION_SQL, "number")
_NOTHING = "cast(null as string)"

PROVENANCE = Provenance(
    connector="postgresql",
    members=(_LSN_MEMBER, _TRANSACTION),
    debezium_package="io.debezium.connector.postgresql",
    debezium_sequence=f"""concat('[null,"', {LSN_SQL}, '"]')""",
    debezium=(
        Member("schema", "schema", optional=False),
        Member("table", "`table`", optional=False),
        Member("txId", f"nullif({TRANSACTION_SQL}, '0')", "number"),
        _LSN_MEMBER,
        Member("xmin", _NOTHING, "number"),
        Member("origin", "try_element_at(headers, 'origin')"),
        Member("origin_lsn", _NOTHING, "number"),
    ),
)
"""`lsn` is that of the transaction's commit: the log does not keep where in it each row stood."""
