"""Dead letters as records: what a topic for them gets of each, with the headers that say why it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from tailrace.config import Reference, Template, parse_template
from tailrace.contracts.letters import Letter, unpacked

LONGEST_MESSAGE = 2000
"""Characters of an error's text in a header."""
_HOLES = (("source", "schema"), ("source", "table"), ("source", "name"), ("tenant_id",), ("op",))
_MS = 1000


def _of_letters(text: str) -> str:
    """Refuse a hole that only some letters could fill: one whose processor failed has no values."""
    for part in parse_template(text):
        if isinstance(part, Reference) and part.path not in _HOLES:
            known = ", ".join(f"`${{{'.'.join(path)}}}`" for path in _HOLES)
            context = {"hole": ".".join(part.path), "hint": f"use one of {known}"}
            raise PydanticCustomError("config.bad_template", "not every dead letter has a `{hole}`", context)
    return text


LetterTemplate = Annotated[Template, AfterValidator(_of_letters)]
"""The type of a field that says where dead letters go."""


@dataclass(frozen=True)
class LetterRecord:
    """A letter of `pipeline`, set aside at `first_us` and `attempts` times since. It says no more than the letter: of
    one whose processor failed, and of one that was too large, it has no value."""

    letter: Letter
    pipeline: str
    tenant: str
    attempts: int
    first_us: int

    @cached_property
    def row(self) -> dict[str, Any]:
        """What the sink's writer was given; empty where nothing was."""
        return unpacked(self.letter.row).to_pylist()[0] if self.letter.row else {}

    @property
    def key(self) -> str | None:
        """The record's, or else the row's."""
        return self.row.get("record_key") or self.letter.key

    @property
    def value(self) -> str | None:
        """The record, as the target refused it."""
        return self.row.get("value")

    def filled(self, template: str, escape: Callable[[str], str]) -> str:
        """The template for this letter; `escape` makes of a value what a name may have."""
        values = {
            ("source", "schema"): self.letter.schema,
            ("source", "table"): self.letter.table,
            ("source", "name"): self.pipeline,
            ("tenant_id",): self.tenant,
            ("op",): self.letter.op,
        }
        parts = parse_template(template)
        return "".join(part if isinstance(part, str) else escape(values[part.path]) for part in parts)

    def headers(self, destination: str | None, *, whole: bool) -> dict[str, str]:
        """`destination`: where the record was to go, if that is known. `whole`: its value goes with it."""
        letter = self.letter
        told = {
            "dlq.source.topic": destination or "",
            "dlq.source.partition": "0",
            "dlq.source.offset": str(letter.seq),
            "dlq.error.type": letter.code,
            "dlq.error.message": " ".join(letter.message.split())[:LONGEST_MESSAGE],
            "dlq.timestamp": str(self.first_us // _MS),
            "dlq.sink_id": letter.sink,
            "dlq.pipeline": self.pipeline,
            "dlq.processor": letter.processor,
            "dlq.source.id": letter.source,
            "dlq.source.table": letter.table_name,
            "dlq.source.position": letter.position,
            "dlq.op": letter.op,
            "dlq.event_id": letter.event_id,
            "dlq.attempts": str(self.attempts),
            "dlq.value": "" if whole else "left out",
        }
        return {name: text for name, text in told.items() if text}
