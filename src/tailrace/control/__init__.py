"""The control store: what must be remembered beside the logs. One SQLite file under the data directory.

It only indexes what the logs decide: everything that must be atomic with changes is in a log's manifest, and a
tap enters it here afterwards (and again after a crash). Written by tap, supervisor and driver on one host.

    store.py       opening it, and its transactions
    tables.py      what it has; migrations.py: how it gets there; upsert.py: inserts that may meet a row
    ledger.py      snapshot runs and their chunks
    schemas.py     the schema registry
    journal.py     dead letters; replays.py: those that are to be delivered again
    sightings.py   what the taps last saw of their tables
"""

from tailrace.control.store import Store, refuse_lost

__all__ = ["Store", "refuse_lost"]
