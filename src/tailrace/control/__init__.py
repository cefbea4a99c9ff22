"""The control store: what must be remembered beside the logs. One SQLite file under the data directory, or a PostgreSQL
database.

Of changes it only indexes what the logs decide: everything that must be atomic with them is in a log's manifest, and a
tap enters it here afterwards (and again after a crash). What people want of the service is nowhere else.

    store.py       opening it, and its transactions; sqlite.py, postgres.py: what holds it; place.py: where that is
    tables.py      what it has; migrations.py: how it gets there; upsert.py, counters.py: how rows get in
    ledger.py      snapshot runs and their chunks
    schemas.py     the schema registry
    journal.py     dead letters; replays.py: those that are to be delivered again
    sightings.py   what the taps last saw of their tables
    documents.py   what pipelines, sources and sinks are to be; desired.py: and do; actual.py: what they do
    operations.py  long work that somebody asked for
    events.py      what happened, for those that watch; audit.py: who did what
    tokens.py      who may call the service; lease.py: which of several servers is the active one
"""

from tailrace.control.place import StorePlace, place_of, text_of
from tailrace.control.store import Store, refuse_lost, store_exists

__all__ = ["Store", "StorePlace", "place_of", "refuse_lost", "store_exists", "text_of"]
