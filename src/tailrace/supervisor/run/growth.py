"""What came into a log since a run began, and how many versions of its tables there are."""

from __future__ import annotations

from collections import Counter

from tailrace.changelog import LogReader


class Growth:
    """Of one log: `take` what a reader has seen, before it forgets that."""

    def __init__(self) -> None:
        self.bytes = self.snapshot_rows = 0
        self.versions: dict[str, int] = {}
        """How many versions of each table the log knows."""

    def take(self, reader: LogReader) -> None:
        for line in reader.lines:
            self.bytes += line.bytes
            self.snapshot_rows += 0 if line.admitted is None else line.rows
        schemas = reader.schemas
        if len(schemas) != sum(self.versions.values()):
            self.versions = dict(Counter(schema.name for schema in schemas.values()))
