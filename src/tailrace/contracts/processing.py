"""What a processor promises: a step between the log and a sink, for records and for tables alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field

from tailrace.config import Model
from tailrace.contracts.letters import OnError
from tailrace.contracts.provenance import Provenance
from tailrace.errors import ProcessorError
from tailrace.schema import TableSchema

Trait = Literal["rows", "key", "schema"]

Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Changes of any tables in, changes out, both in the columns of `change.PROCESSED`, in `seq` order per lane.

- A change that is not wanted stays in the batch and gets a reason in `dropped`. It is counted and taken out behind the
  step; before a table that mirrors its source it becomes a delete of its key.
- What a step makes of a change beside the change itself has its `seq` and stands behind it, with `synthetic` (the
  processor's id) and a `part` that no other change of that `seq` has.
- The same batch gives the same answer, cut and joined differently too: a repeat after a crash runs it again.
- `t` (truncate), `m` (message) and `s` (schema change) have no row; who has nothing to say about them lets them pass.
"""


DEAD_LETTER = "dead_letter"
"""Why a change was dropped that became a dead letter."""


@dataclass(frozen=True)
class Failed:
    """A change that a processor failed for: its row, alone, as it came in."""

    processor: str
    change: pa.RecordBatch
    error: ProcessorError


@dataclass(frozen=True)
class Place:
    """Where a step works. `tables` are the versions of tables as they come in, by `schema_id`. `mirror`: behind it is a
    table that equals the source, so that a change's outcome may depend on table, key and `after` alone. `outspoken`:
    errors may quote what user code says, which may be values of rows: somebody tries the chain out on samples.
    `set_aside` makes a dead letter of a change, which is then dropped as `DEAD_LETTER`; None: there are none here. It
    does not travel."""

    pipeline: str
    tenant: str
    connector: str
    tables: Mapping[int, TableSchema]
    mirror: bool = False
    outspoken: bool = False
    set_aside: Callable[[Failed], None] | None = field(default=None, compare=False, repr=False)


class Processor(Model, ABC):
    """A step between the log and a sink: over Arrow batches (`BatchProcessor`) or over DataFrames
    (`processors.frames.FrameProcessor`). A subclass is one file in `processors/`, frozen and picklable."""

    id: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9._-]+$",
            description="Unique name of the processor in its chain. Absent: its type.",
        ),
    ] = ""

    @abstractmethod
    def preserves(self) -> frozenset[Trait]:
        """What every change comes out with: `rows`: exactly one change for each that came in; `key`: its key;
        `schema`: its columns."""

    def shape(self, table: TableSchema) -> TableSchema | None:
        """What a version of a table looks like behind it; None: only the data can tell."""
        return table if "schema" in self.preserves() else None

    def keeps_keys(self, table: TableSchema) -> bool:
        """Whether every change of `table` comes out with its key, name by name and byte for byte."""
        return "key" in self.preserves()

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        """The columns that a change of `table` lacks behind it where it lacks these before it."""
        return tuple(columns)

    def of_source(self, source: Provenance) -> Processor:
        """The processor, with what it takes from the configuration of the source. Raises a validation error where it
        needs more."""
        return self

    def breaks_mirror(self) -> str | None:
        """Why a table behind it could not equal its source under the chain; None: it can."""
        return None

    def hides(self) -> bool:
        """Whether it makes values unreadable, so that nobody may keep what came in."""
        return False

    def makes_letters(self) -> bool:
        """Whether its configuration asks for dead letters."""
        return False

    def failing(self, on_error: OnError) -> Self:
        """The same, with this for what follows where it fails, unless it says that itself."""
        return self


class BatchProcessor(Processor):
    """Works on batches of changes, in the tasks that read the log."""

    user_code: ClassVar[bool] = False
    """Whether it runs code of the user's, which never runs in the driver."""

    @abstractmethod
    def open(self, place: Place) -> Step:
        """In a task: the step. Raises `ProcessorError` where it cannot work, and so does the step."""
