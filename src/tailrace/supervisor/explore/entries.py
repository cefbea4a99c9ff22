"""What is shown of a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.change import event_id
from tailrace.schema import table_name
from tailrace.supervisor.explore.fates import Fate
from tailrace.supervisor.explore.passing import Failure, Seen
from tailrace.supervisor.trial.steps import Drop

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """What comes out for a change: itself (`part` is None), or what a processor made beside it. Images are JSON texts,
    as the log or the chain spells them."""

    part: str | None
    event_id: str
    op: str
    key: str | None
    before: str | None
    after: str | None
    unchanged: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    route: Mapping[str, str] = field(default_factory=dict)
    synthetic: str | None = None

    @classmethod
    def of(cls, row: Row) -> Content:
        return cls(
            row["part"],
            event_id(row["source"], row["position"], row["tx_ordinal"], row["part"]),
            op=row["op"],
            key=row["key"],
            before=row["before"],
            after=row["after"],
            unchanged=tuple(row["unchanged"] or ()),
            headers=dict(row["headers"] or ()),
            tags=tuple(row["tags"] or ()),
            route=dict(row["route"] or ()),
            synthetic=row["synthetic"],
        )


@dataclass(frozen=True)
class Entry:
    """A change. What the source says of it outside its row is always there; `contents` is what comes out for it, the
    change itself first, and has nothing where it was dropped or failed for. `key` is the row's, where it may be shown.

    `dropped` names the processor that dropped it, `failed` the one that failed for it. `sinks` is its fate at each."""

    offset: int
    op: str
    table: str
    key: str | None
    ts_us: int
    captured_us: int
    tx_id: str
    tx_ordinal: int
    tx_last: bool
    position: str
    schema_id: int
    contents: tuple[Content, ...] = ()
    dropped: Drop | None = None
    failed: Failure | None = None
    sinks: Mapping[str, Fate] = field(default_factory=dict)

    @property
    def itself(self) -> Content | None:
        return next((each for each in self.contents if each.part is None), None)

    @property
    def made(self) -> tuple[Content, ...]:
        return tuple(each for each in self.contents if each.part is not None)

    def with_fates(self, sinks: Mapping[str, Fate]) -> Entry:
        return replace(self, sinks=sinks)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: what comes out for the change itself stands beside what the source says of it."""
        content = self.itself
        return {
            **{name: getattr(self, name) for name in _SAID},
            **_content(content or Content(None, "", self.op, self.key, None, None)),
            "source_op": self.op,
            "event_id": content.event_id if content is not None else None,
            "made": [{"part": each.part, "event_id": each.event_id, **_content(each)} for each in self.made],
            "dropped": None if self.dropped is None else self.dropped._asdict(),
            "failed": None if self.failed is None else vars(self.failed),
            "sinks": {name: _fate(fate) for name, fate in self.sinks.items()},
        }


_SAID = ("offset", "table", "ts_us", "captured_us", "tx_id", "tx_ordinal", "tx_last", "position", "schema_id")


def entry_of(change: Row, contents: tuple[Content, ...], seen: Seen, *, shows_key: bool) -> Entry:
    """`change` as the log has it. `shows_key`: the chain leaves every key as it is."""
    itself = next((each for each in contents if each.part is None), None)
    key = change["key"] if shows_key else None if itself is None else itself.key
    return Entry(
        change["seq"],
        change["op"],
        table_name(change["schema"], change["table"]),
        key,
        **{name: change[name] for name in _SAID if name not in ("offset", "table")},
        contents=contents,
        dropped=seen.drops.get((change["seq"], None)),
        failed=seen.failures.get(change["seq"]),
    )


def _content(content: Content) -> dict[str, Any]:
    told = ("op", "key", "before", "after", "synthetic")
    lists = {"unchanged": list(content.unchanged), "tags": list(content.tags)}
    return {
        **{name: getattr(content, name) for name in told},
        **lists,
        "headers": dict(content.headers),
        "route": dict(content.route),
    }


def _fate(fate: Fate) -> dict[str, Any]:
    letters = [{name: value for name, value in each._asdict().items() if name != "sink"} for each in fate.letters]
    return {"sent": fate.sent, "letters": letters}
