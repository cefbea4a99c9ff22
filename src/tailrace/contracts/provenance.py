"""What a kind of source adds to records: who it is, and where in its own log a change stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Member:
    """A member of a record's `source`. `sql` is its value, from the columns of `change.CHANGES`: a text, or null, which
    is written as a JSON string, or as it stands where `json` says that it is the text of a number."""

    name: str
    sql: str
    json: Literal["string", "number"] = "string"
    optional: bool = True
    """Whether it may be null."""


@dataclass(frozen=True)
class OutboxNames:
    """Where an application writes messages rather than data: tables, and prefixes of logical messages, by patterns with
    `*` for any characters."""

    tables: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """A kind of source as records name it. `members` stand in `source` of the native envelope, and are what
    `${source.X}` reaches. `debezium_sequence` and `debezium` are what Debezium's own connector for such a database
    writes there: its `sequence`, and what follows the members that all its connectors have. `debezium_package` is where
    its schemas are. `outbox` is what the source's configuration says of one."""

    connector: str
    members: tuple[Member, ...]
    debezium_package: str
    debezium: tuple[Member, ...]
    debezium_sequence: str = "cast(null as string)"
    outbox: OutboxNames = OutboxNames()

    def templates(self) -> Mapping[str, str]:
        """SQL by the name that a routing template has for it."""
        return {each.name: each.sql for each in self.members}


UNKNOWN = Provenance("unknown", (Member("sequence", "position"),), "io.debezium.connector.unknown", ())
"""Of a source that does not say: its position as it is."""
