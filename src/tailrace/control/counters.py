"""Numbers that grow and are never given twice, whatever was deleted since."""

from __future__ import annotations

import sqlalchemy as sa

from tailrace.control.tables import counters
from tailrace.control.upsert import insert_or


def next_number(connection: sa.Connection, name: str) -> int:
    """The next number of a counter. Whoever takes one holds it until the transaction ends, so that numbers become
    visible in their order."""
    grown = {"value": counters.c.value + 1}
    taken = insert_or(connection, counters, {"name": name, "value": 1}, grown).returning(counters.c.value)
    found: int = connection.execute(taken).scalar_one()
    return found
