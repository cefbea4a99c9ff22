"""The control store: what must be remembered beside the logs. One SQLite file under the data directory.

It only indexes what the logs decide: everything that must be atomic with changes is in a log's manifest, and a
tap enters it here afterwards (and again after a crash). Written by tap, supervisor and driver on one host.
"""

from tailrace.control.store import Store

__all__ = ["Store"]
