"""One table of a mirror, in the transaction of a batch: the steps that bring it on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.contracts import Delivery
from tailrace.errors import SinkError
from tailrace.schema import TableSchema, differences
from tailrace.sinks.lake.share import Clear, Evolve, Rows, Share, steps
from tailrace.sinks.postgres import fold, shape
from tailrace.sinks.postgres.connection import Session, told
from tailrace.sinks.postgres.ledger import Ledger, Mirrored
from tailrace.sinks.postgres.merge import Merge
from tailrace.sinks.tables import Log

if TYPE_CHECKING:
    from tailrace.sinks.postgres import PostgresMirror

NAME_BYTES = 63
_ROW_OPS = pa.array(["c", "u", "r", "d"])
_NO_ZERO = "22021"
"""SQLSTATE of a text with the character zero, which no type of PostgreSQL's holds."""


@dataclass(frozen=True)
class MirrorTable:
    """A table of the source, and the one that equals it."""

    sink: PostgresMirror
    delivery: Delivery
    ledger: Ledger
    log: Log
    session: Session

    def bring(self, share: Share, start: int, end: int) -> None:
        """Apply the table's changes of `[start, end)`. Constraints that can wait are looked at when all is there."""
        self.session.execute(sql.SQL("SET CONSTRAINTS ALL DEFERRED"))
        for step in steps(share, start, end, frozenset("st")):
            match step:
                case Rows():
                    self._rows(step)
                case Clear():
                    self._clear(share.parts[0].schema)
                case Evolve():
                    self._evolve(step)
        # Not at the commit, where it would be every table's trouble.
        self.session.execute(sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))

    # -- steps -----------------------------------------------------------------------------------------------

    def _clear(self, schema: TableSchema) -> None:
        table = self._table(schema)
        if self._known(table, schema) is not None:
            table.clear()

    def _evolve(self, step: Evolve) -> None:
        table = self._table(step.schema)
        known = self._known(table, step.schema)
        if known is None or not step.schema.columns:
            return  # it is made with its first row; a table that was dropped stays as it was
        if {"kind": "recreate"} in differences(known.version, step.schema):
            table.clear()
        if known.version.id != step.schema.id or step.schema.follows(known.version):
            self._reshape(table, known, step.schema, step.image)

    def _rows(self, step: Rows) -> None:
        if not step.schema.columns:
            raise SinkError(
                "sink.no_columns",
                f"{step.schema.name} has no columns",
                hint="give the table a column, or leave it out of the pipeline's tables",
                where=step.schema.name,
            )
        table = self._ready(step.schema)
        done = False
        while not done:
            merge = Merge(self.session, table, step.schema, table.columns())
            try:
                with self.session.savepoint():
                    self._apply(merge, step)
                done = True
            except psycopg.DataError as error:
                self._adapt(table, merge, step, error)

    def _ready(self, schema: TableSchema) -> shape.Table:
        """The table, made where it is missing, with the columns of the version."""
        table = self._table(schema)
        known = self._known(table, schema)
        if known is None:
            self._make(table, schema)
        elif schema.follows(known.version):
            self._reshape(table, known, schema, "")
        return table

    def _reshape(self, table: shape.Table, known: Mirrored, schema: TableSchema, image: str) -> None:
        drop, adapt = self.sink.dropped_columns == "drop", self.sink.evolution_of(schema) == "adapt"
        changed = shape.evolve(table, known, schema, image, drop=drop, adapt=adapt)
        self.ledger.note(self.session, table.schema, table.name, changed)

    def _make(self, table: shape.Table, schema: TableSchema) -> None:
        if table.exists():
            shape.take_over(table, schema)
        elif self.sink.auto_create_table:
            table.create(schema)
        else:
            raise SinkError(
                "sink.table_missing",
                f"there is no table {table.text} for {schema.name}",
                hint="make it, or set auto_create_table: true",
                where=schema.name,
            )
        self.ledger.note(self.session, table.schema, table.name, Mirrored(schema))

    def _table(self, schema: TableSchema) -> shape.Table:
        place = self.sink.place_of(schema, self.delivery)
        for name in place:
            if not name or len(name.encode()) > NAME_BYTES:
                raise SinkError(
                    "sink.name_too_long",
                    f"a name of {len(name.encode())} bytes is none that PostgreSQL takes: {name}",
                    hint="make schema_name and table_name shorter",
                    where=schema.name,
                )
        return shape.Table(self.session, *place)

    def _known(self, table: shape.Table, schema: TableSchema) -> Mirrored | None:
        """What the table mirrors. None where it is missing, or none of ours yet."""
        known = self.ledger.mirrored(self.session, table.schema, table.name)
        if known is None:
            return None
        owner = (self.ledger.pipeline, self.ledger.sink)
        renamed = known.version.relation == schema.relation != 0
        if known.owner != owner or (known.version.name != schema.name and not renamed):
            mine, other = f"{schema.name} ({'/'.join(owner)})", f"{known.version.name} ({'/'.join(known.owner)})"
            raise SinkError(
                "sink.table_shared",
                f"{mine} and {other} would be one table, {table.text}",
                hint="tell them apart in schema_name and table_name, as {source}_{table} does",
                where=schema.name,
            )
        if table.exists():
            return known
        if {"kind": "recreate"} not in differences(known.version, schema):
            raise self._gone(table, schema)
        self.ledger.forget(self.session, table.schema, table.name)
        return None

    def _gone(self, table: shape.Table, schema: TableSchema) -> SinkError:
        """Made anew it would have only what comes from now on."""
        forget = f"delete its row in {self.ledger.schema}.tables, start again and read it anew"
        return SinkError(
            "sink.table_gone",
            f"the table {table.text} is gone, which kept {schema.name}",
            hint=f"restore it; or {forget}: tailrace snapshot PIPELINE --table {schema.name}",
            where=schema.name,
        )

    # -- rows ------------------------------------------------------------------------------------------------

    def _apply(self, merge: Merge, step: Rows) -> None:
        if not step.schema.key:
            self._refuse_keyless(step)
            merge.append(fold.whole(batch, merge.names) for batch in self._changes(step))
        elif step.content.partial_columns:
            rows = fold.folded(list(self._changes(step)), merge.names, step.content.partial_columns)
            if rows is not None:
                merge.bring([rows], complete=self.log.drops_rows)
        else:
            merge.bring(fold.whole(batch, merge.names) for batch in self._changes(step, last=True))

    def _changes(self, step: Rows, *, last: bool = False) -> Iterable[pa.RecordBatch]:
        for batch in self.log.batches(step.start, step.end, step.schema.id, last=last):
            rows = batch.filter(pc.is_in(batch.column("op"), value_set=_ROW_OPS))
            if rows.num_rows:
                yield rows

    def _refuse_keyless(self, step: Rows) -> None:
        changed = step.content.ops - {"c", "r", "s", "t"}
        if changed or self.sink.without_key == "halt":
            raise SinkError(
                "sink.no_key",
                f"{step.schema.name} has no key" + (": its updates and deletes name no row" if changed else ""),
                hint="give the table a primary key, or keep its changes in a sink with mode: events",
                where=step.schema.name,
            )

    # -- values that do not fit ------------------------------------------------------------------------------

    def _adapt(self, table: shape.Table, merge: Merge, step: Rows, error: psycopg.DataError) -> None:
        """Follow the policy for columns with values that they do not hold. Raises where no column is to blame."""
        if error.sqlstate == _NO_ZERO:
            raise SinkError(
                "sink.unfit_value",
                f"a text of {step.schema.name} has a character that PostgreSQL does not store ({told(error)})",
                hint="take the character zero out by a processor; the table catches up at the next start",
                where=step.schema.name,
            ) from None
        wrong = merge.misfits(fold.whole(batch, merge.names) for batch in self._changes(step))
        if not wrong:
            raise error
        if self.sink.evolution_of(step.schema) == "halt":
            raise SinkError(
                "sink.unfit_value",
                f"a value of {step.schema.name}.{wrong[0]} does not fit its column, {merge.types[wrong[0]]}",
                hint="alter the column, or set evolution: adapt (it becomes text), then start again: it catches up",
                where=step.schema.name,
            ) from None
        for name in wrong:
            table.to_text(name, merge.types[name])
