"""The change log: ordered, immutable, replayable.

`LogWriter.append` returns when a capture is durable; `LogReader` plans ranges, `read_slice` reads them in tasks.
"""

from tailrace.changelog.committed import Awaited, delivered
from tailrace.changelog.first_read import FirstRead
from tailrace.changelog.holds import Holds
from tailrace.changelog.reader import Limits, LogReader, Pending, Trimmed, admissions, earliest, head, tip, trimmed
from tailrace.changelog.retention import Bounds, Holder, Owner, Retention, RetentionOutcome, Subscriber, Subscribers
from tailrace.changelog.slices import Slice, read_slice
from tailrace.changelog.writer import LogWriter

__all__ = [
    "Awaited",
    "Bounds",
    "FirstRead",
    "Holder",
    "Holds",
    "Limits",
    "LogReader",
    "LogWriter",
    "Owner",
    "Pending",
    "Retention",
    "RetentionOutcome",
    "Slice",
    "Subscriber",
    "Subscribers",
    "Trimmed",
    "admissions",
    "delivered",
    "earliest",
    "head",
    "read_slice",
    "tip",
    "trimmed",
]
