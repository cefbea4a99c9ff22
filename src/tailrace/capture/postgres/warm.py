"""Compile the decoders ahead of time, as `make` does, so that the first tap and the first snapshot start at once.

python -m tailrace.capture.postgres.warm
"""

from __future__ import annotations

import time

from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.relations import Relations
from tailrace.capture.postgres.rows import DecodedRows
from tailrace.schema import SchemaBook

if __name__ == "__main__":
    started = time.monotonic()
    print("tailrace: compiling the decoder (once, up to a minute) …", flush=True)
    relations = Relations("", SchemaBook(), PostgresCatalog(""), lambda schema, table: True)
    rows = DecodedRows(1 << 20)
    rows.load_decoder(relations)
    rows.decode_copy(bytearray(), 0, relations)
    print(f"tailrace: the decoder is ready ({time.monotonic() - started:.0f} s)")
