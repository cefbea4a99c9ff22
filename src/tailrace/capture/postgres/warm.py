"""Load the compiled decoder before the stream starts; compile it first where the cache has none.

python -m tailrace.capture.postgres.warm
"""

from __future__ import annotations

import struct
import time
from array import array

import numpy as np

from tailrace.capture.postgres.kernel import WAL_HEADER
from tailrace.capture.postgres.messages import Relation, RelationColumn
from tailrace.capture.postgres.relations import Relations, TypeInfo
from tailrace.capture.postgres.rows import Rows
from tailrace.schema import SchemaBook

_INT, _TEXTS = 23, 1009


class _NoCatalog:
    def type_info(self, oid: int, modifier: int) -> TypeInfo:
        return TypeInfo("", oid, 25 if oid == _TEXTS else 0, ",")

    def primary_key(self, oid: int) -> tuple[str, ...]:
        return ("id",)


def warm(rows: Rows) -> None:
    """Run one small transaction through every compiled function, and forget it."""
    columns = (RelationColumn("id", _INT, -1, True), RelationColumn("tags", _TEXTS, -1, False))
    relations = Relations("", SchemaBook(), _NoCatalog(), lambda schema, table: True)
    relations.announce(Relation(1, "", "", "d", columns))
    data, ends = bytearray(), array("q")
    one, two = (_tuple(b"%d" % number, b"{a}") for number in (1, 2))
    begin, commit = b"B" + struct.pack("!QQI", 1, 0, 1), b"C" + struct.pack("!BQQQ", 0, 1, 2, 0)
    table = struct.pack("!I", 1)
    changes = (b"I" + table + b"N" + one, b"U" + table + b"K" + one + b"N" + two, b"D" + table + b"K" + two)
    for message in (begin, *changes, commit, begin):
        data += b"w".ljust(WAL_HEADER, b"\0") + message
        ends.append(len(data))
    rows.decode(np.frombuffer(data, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64), 0, relations)
    rows.take_finished()
    rows.take_open()
    rows.reset()


def _tuple(*values: bytes) -> bytes:
    return struct.pack("!H", len(values)) + b"".join(b"t" + struct.pack("!I", len(v)) + v for v in values)


if __name__ == "__main__":
    started = time.monotonic()
    print("tailrace: compiling the decoder …", flush=True)
    warm(Rows(1 << 20))
    print(f"tailrace: the decoder is ready ({time.monotonic() - started:.0f} s)")
