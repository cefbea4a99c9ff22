"""One table of a lake sink: its mark, and the steps that bring it on. A step may be repeated until its mark is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace import jvm
from tailrace.contracts import Delivery, Portion
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.schema import TableSchema, differences
from tailrace.sinks.lake import evolve, merge
from tailrace.sinks.lake.defaults import defaults_of
from tailrace.sinks.lake.fold import Reading, folded, whole, with_moved, with_row
from tailrace.sinks.lake.ranges import ranges
from tailrace.sinks.lake.share import Clear, Evolve, Rows, Step
from tailrace.sinks.lake.target import BEGAN, LOG, Shape, viewed
from tailrace.sinks.tables import Log, Portions

if TYPE_CHECKING:
    from tailrace.sinks.lake import LakeSink


MANY = jvm.FEW
"""Fewer rows are parsed by Spark: tasks that make them are longer to plan."""


@dataclass(frozen=True)
class Writing:
    """A write of rows of one version: how it is done, and whether it is, which after an error is not known."""

    schema: TableSchema
    write: Callable[[DataFrame], None]
    is_done: Callable[[], bool]


class SinkTable:
    def __init__(self, sink: LakeSink, spark: SparkSession, schema: TableSchema, delivery: Delivery, log: Log) -> None:
        self._sink, self._log, self._source = sink, log, schema
        self.target = sink.target_for(spark, schema, delivery, log.log_id)
        self._mark: int | None = None
        self._state: int | None = None
        self.committed = 0
        """The last mark that is in a commit: a step that changes nothing makes none."""
        self._empty = False
        """Whether it is known to hold no row."""

    def mark(self) -> int:
        """How far the table is."""
        if self._mark is None:
            self._state = self.target.state()
            self._mark = self.committed = self._settled()
        return self._mark

    def _settled(self) -> int:
        """The mark of the table, which is whole again: what was begun with its columns is done."""
        shape = self._shape()
        if shape is None:
            return 0
        evolve.finish(self.target, shape)
        return self.target.mark()

    def look(self) -> int:
        """How far the table is, whatever others did to it since."""
        if self._state != self.target.state():
            self.forget()
        return self.mark()

    def restore_columns(self) -> None:
        """Before every change since the mark is applied again: let the columns be those of the rows."""
        self.target.restore_columns()
        self.forget()

    def forget(self) -> None:
        """Somebody else wrote: look again."""
        self._mark, self._empty = None, False

    def apply(self, step: Step) -> None:
        """Do one step."""
        if step.end <= self.mark():
            return
        self.target.prepare()
        match step:
            case Rows():
                self._rows(step)
            case Clear():
                self._clear(step.end)
            case Evolve():
                self._evolve(step)
        failpoint("lake.step.after_commit")
        before, self._mark, self._state = self._state, step.end, self.target.state()
        if self._state != before and self.target.written == step.end:
            self.committed = step.end

    def _shape(self) -> Shape | None:
        """What it looks like. Raises where it keeps another table of the source, whose marks would pass for its own."""
        shape = self.target.shape()
        keeps = None if shape is None else shape.version
        renamed = keeps is not None and keeps.relation == self._source.relation != 0
        if keeps is not None and keeps.name != self._source.name and not renamed:
            raise SinkError(
                "sink.table_shared",
                f"{self._source.name} and {keeps.name} would be one table in the lake, {self.target.sql_name}",
                hint="tell them apart in table_name, as {schema}__{table} does, and give the sink another id",
                where=self._source.name,
            )
        return shape

    # -- steps -----------------------------------------------------------------------------------------------

    def _clear(self, mark: int) -> None:
        if self._shape() is None:
            return
        if self._sink.soft_delete:
            gone = "`_is_deleted` = true, `_deleted_at` = current_timestamp()"
            self.target.execute(f"UPDATE {self.target.sql_name} SET {gone} WHERE NOT `_is_deleted`", mark)
            return
        self.target.clear(mark)
        self._empty = True

    def _evolve(self, step: Evolve) -> None:
        shape = self._shape()
        if shape is None or not step.schema.columns:
            return  # it is made with its first row; a table that was dropped stays as it was
        mirrors = self._sink.write_mode == "upsert"
        known = shape.version
        anew = known is not None and {"kind": "recreate"} in differences(known, step.schema)
        if mirrors and anew:
            self._clear(step.end)
            failpoint("lake.evolve.after_clear")
        defaults = defaults_of(step.image, step.schema) if mirrors and not anew else {}  # history keeps what was
        evolve.evolve(self.target, step.schema, self._sink, defaults)

    def _rows(self, step: Rows) -> None:
        """Apply rows. Where values do not fit and columns change for them, begin again with the new columns."""
        _refuse_bare(step.schema)
        done = False
        while not done:
            shape = self._ready(step)
            reading = _reading(step.schema, shape)
            if self._sink.write_mode == "append":
                done = self._append(partial(_history, self._read(step)), reading, self._marking(step))
            elif not step.schema.key:
                self._refuse_keyless(step)
                done = self._append(partial(self._new, self._read(step)), reading, self._marking(step))
            else:
                done = self._upsert(reading, step)

    def _read(self, step: Rows, *, last: bool = False, portion: Portion | None = None) -> DataFrame:
        start = max(step.start, self.mark())
        changes = self._log.read(start, step.end, step.schema.id, last=last, portion=portion)
        with viewed(changes) as view:
            found = self.target.session.table(view)
        return found.filter("op <> 's'") if "s" in step.content.ops else found

    def _ready(self, step: Rows) -> Shape:
        """The table, made where it is missing and with the columns of the step's version."""
        shape, schema = self._shape(), step.schema
        if shape is None or self._is_unwritten(shape):
            evolve.create(self.target, schema, self._sink, self._log.log_id, step.start)
            failpoint("lake.create.before_rows")
            self._empty = True
            shape = self._shape() or self.target.existing()
        if step.start < int(shape.properties.get(BEGAN, "0")):  # somebody rolled it back to before it was made anew
            self.target.set_properties({BEGAN: str(step.start)})
        if shape.version is not None and not schema.follows(shape.version):
            return shape
        evolve.evolve(self.target, schema, self._sink, {})
        return self._shape() or self.target.existing()

    def _is_unwritten(self, shape: Shape) -> bool:
        """Whether this sink made the table and wrote nothing yet: a crash may have come before it was wholly made."""
        ours = shape.properties.get(LOG) == self._log.log_id
        return ours and self.mark() == 0 and self.target.loaded() == 0

    # -- rows ------------------------------------------------------------------------------------------------

    def _refuse_keyless(self, step: Rows) -> None:
        changed = step.content.ops - {"c", "r", "s", "t"}
        if changed or self._sink.without_key == "halt":
            raise SinkError(
                "sink.no_key",
                f"{step.schema.name} has no key" + (": its updates and deletes name no row" if changed else ""),
                hint="give the table a primary key, or keep it in a sink with write_mode: append",
                where=step.schema.name,
            )

    def _new(self, rows: DataFrame, reading: Reading) -> DataFrame:
        """Inserts, as the table gets them."""
        return with_row(rows, reading).select("row", *self._alive())

    def _upsert(self, reading: Reading, step: Rows) -> bool:
        if step.only_inserts and not self._sink.soft_delete and self._began() is not None:
            return self._append(partial(self._new, self._read(step)), reading, self._marking(step))
        if "r" not in step.content.ops:
            return self._change(reading, step)
        began = self._began()
        portions = None if began is None else self._portions(step, began)
        if began is None or portions is None or not portions.new:
            return self._change_in_parts(reading, step)
        if not self._load(reading, step, began, alone=not portions.other):
            return False
        return not portions.other or self._change(reading, step, Portion(began, new=False))

    def _began(self) -> int | None:
        """The offset since which the table has held the log's changes, and nothing else; None where it may."""
        properties = self.target.existing().properties
        found = properties.get(BEGAN) if properties.get(LOG) == self._log.log_id else None
        return None if found is None else int(found)

    def _portions(self, step: Rows, began: int) -> Portions | None:
        return self._log.portions(max(step.start, self.mark()), step.end, step.schema.id, began)

    def _load(self, reading: Reading, step: Rows, began: int, *, alone: bool) -> bool:
        """Append rows that are new, of which the table may have some from a batch that was not brought to its end. What
        is new depends on the log alone, so it does not matter where that batch ended. If they are `alone`, their commit
        carries the step's mark."""
        start = max(step.start, self.target.loaded())
        if start >= step.end:
            return not alone or self._change(reading, step)
        part, portion = replace(step, start=start), Portion(began, new=True)
        writing = self._marking(step) if alone else self._loading(step)
        if not self._append_typed(reading, part, portion, writing):
            rows = self._read(part, portion=portion)
            if not self._append(partial(self._new, rows), reading, writing):
                return False
        failpoint("lake.load.before_merge")
        return True

    def _append_typed(self, reading: Reading, step: Rows, portion: Portion, writing: Writing) -> bool:
        """Append rows whose values are made where the log is read, which is quicker than by Spark's parser. False where
        that cannot be, or one does not fit."""
        typed = reading.typed_rows
        if typed is None or step.content.rows < MANY:
            return False
        start = max(step.start, self.mark())
        found = self._log.read_rows(start, step.end, step.schema.id, typed, portion)
        if found is None:
            return False
        with viewed(found) as view:
            rows = self.target.session.table(view).select("*", *self._alive())
        done = self._try_strictly(reading, writing, rows)
        self._empty = self._empty and not done
        return done

    def _change_in_parts(self, reading: Reading, step: Rows) -> bool:
        """A batch of a snapshot may be larger than what a merge should take: each part has a mark of its own."""
        for end in self._log.ends(max(step.start, self.mark()), step.end):
            if not self._change(reading, replace(step, end=end)):
                return False
            self._mark = end
        return True

    def _change(self, reading: Reading, step: Rows, portion: Portion | None = None) -> bool:
        """Bring the keys of changes to what these leave of them."""
        if not step.content.partial_columns:
            rows, strict = self._read(step, last=True, portion=portion), reading.as_strict()
            source = merge.strict_source(whole(rows, strict), strict)
            writing = replace(self._marking(step), write=partial(self._bring, reading, step, portion, unsent=False))
            if self._try_strictly(reading, writing, source):
                return True
            return self._merge(whole(rows, reading), reading, step, portion)
        rows = with_row(self._read(step, portion=portion), reading)
        if step.content.has_partial_key_changes:
            here = self.target.session.table(self.target.sql_name)
            rows = with_moved(rows, reading, step.content.partial_columns, here)
        return self._merge(folded(rows, step.content.partial_columns), reading, step, portion)

    def _alive(self) -> list[Column]:
        return [F.lit(False).alias("_is_deleted")] if self._sink.soft_delete else []

    def _append(self, read: Callable[[Reading], DataFrame], reading: Reading, writing: Writing) -> bool:
        """Add rows. `read` gives them, parsed in one way or another in `row`, and the sink's own columns."""
        strict = reading.as_strict()
        rows = read(strict)
        others = [name for name in rows.columns if name != "row"]
        if self._try_strictly(reading, writing, rows.selectExpr(*strict.strict_columns(), *others)):
            self._empty = False
            return True
        checked = reading.typed(read(reading))
        typed = checked.select(*reading.columns(), *others, reading.misfits().alias(evolve.UNFIT)).persist()
        try:
            [found] = typed.agg(F.count("*").alias("rows"), merge.unfit_columns(evolve.UNFIT)).collect()
            if not self._fitted(found["unfit"], writing.schema):
                return False
            if found["rows"]:
                writing.write(self._writable(typed))
                self._empty = False
        finally:
            typed.unpersist()
        return True

    def _marking(self, step: Rows) -> Writing:
        """A write that brings the table to the step's end."""
        return Writing(
            step.schema, lambda rows: self.target.append(rows, step.end), lambda: self.target.mark() >= step.end
        )

    def _loading(self, step: Rows) -> Writing:
        """A write of new rows of the step, whose other changes come after it."""
        return Writing(
            step.schema,
            lambda rows: self.target.load(rows, self.mark(), step.end),
            lambda: self.target.loaded() >= step.end,
        )

    def _try_strictly(self, reading: Reading, writing: Writing, rows: DataFrame) -> bool:
        """Write in one pass, which fails where a value does not fit; False: look for those that do not."""
        if reading.lenient:
            return False
        try:
            writing.write(rows)
        except (PySparkException, Py4JJavaError) as error:
            if self.target.is_conflict(error):
                raise
            return writing.is_done()
        return True

    def _merge(self, winners: DataFrame, reading: Reading, step: Rows, portion: Portion | None) -> bool:
        """Bring keys to what `winners` say."""
        source = merge.source(winners, reading).persist()
        try:
            found = merge.measure(source)
            if not self._fitted(found.unfit, step.schema):
                return False
            if found.rows:
                lenient = self.target.existing().type(evolve.UNFIT) is not None
                self._bring(reading, step, portion, source, unsent=found.unsent, lenient=lenient)
        finally:
            source.unpersist()
        return True

    def _bring(
        self,
        reading: Reading,
        step: Rows,
        portion: Portion | None,
        source: DataFrame,
        *,
        unsent: bool,
        lenient: bool = False,
    ) -> None:
        columns, soft = list(reading.types), self._sink.soft_delete
        if self._empty and not unsent:
            self.target.append(merge.fresh(source, columns, lenient=lenient, soft=soft), step.end)
        else:
            keys = self._log.keys(max(step.start, self.mark()), step.end, step.schema.id, portion)
            found = ranges(keys, [name for name in reading.types if name in reading.key], reading.types)
            where = {name: bounds for name, bounds in found.items() if reading.is_ordered(name)}
            statement = merge.Statement(
                columns, reading, where, unsent=unsent, lenient=lenient, soft=soft, whole_inserts=self._log.drops_rows
            )
            self.target.merge(source, statement.text, step.end)
        self._empty = False

    def _writable(self, typed: DataFrame) -> DataFrame:
        if self.target.existing().type(evolve.UNFIT) is None:
            return typed.drop(evolve.UNFIT)
        return typed

    def _fitted(self, unfit: list[str], schema: TableSchema) -> bool:
        """Follow the policy for columns with values that do not fit; False: they are another type now."""
        if not unfit:
            return True
        match self._sink.evolution_of(schema):
            case "adapt":
                evolve.to_text(self.target, unfit)
                return False
            case "lenient":
                evolve.add_unfit_column(self.target)
                return True
            case "halt":
                raise evolve.unfit_value(schema, unfit[0])


def _refuse_bare(schema: TableSchema) -> None:
    if not schema.columns:
        raise SinkError(
            "sink.no_columns",
            f"{schema.name} has no columns, and a table in the lake needs one",
            hint="give the table a column, then give the sink another id; or leave it out of the pipeline's tables",
            where=schema.name,
        )


def _reading(schema: TableSchema, shape: Shape) -> Reading:
    types = {column.name: shape.schema[column.name].dataType for column in schema.columns}
    return Reading.of(schema, types, lenient=shape.type(evolve.UNFIT) is not None)


def _history(rows: DataFrame, reading: Reading) -> DataFrame:
    others = (
        "op AS _op",
        "timestamp_micros(ts_us) AS _ts",
        "tx_id AS _tx",
        "position AS _position",
        "event_id AS _event_id",
        "seq AS _seq",
        "unchanged AS _unchanged",
    )
    return rows.select(reading.parsed("coalesce(after, before, key)").alias("row"), *map(F.expr, others))
