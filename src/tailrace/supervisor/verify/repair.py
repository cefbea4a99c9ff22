"""Making a table of the lake equal again, row by row: what the source has is read and delivered again; what it has
not is removed, as long as it is still the row that was compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.contracts import Extent
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import SetupError, SinkError
from tailrace.schema import TableSchema
from tailrace.sinks.lake.target import Target, viewed
from tailrace.spark.compare import GONE, GONE_AT, HASH, KEY, Comparison, Difference
from tailrace.supervisor.verify.passage import Patience
from tailrace.supervisor.verify.table import COLLECTED, KEYS_PER_CHUNK, TableVerification

REASON = "verify"
ROUNDS = 3
TRIES = 5


class Repair:
    """Of one table, after its verification."""

    def __init__(
        self,
        verification: TableVerification,
        target: Target,
        ledger: SnapshotLedger,
        source: str,
        log_id: str,
        say: Callable[[str], None],
    ) -> None:
        self._verification, self._target, self._ledger = verification, target, ledger
        self._source, self._log_id, self._say = source, log_id, say

    def run(self, schema: TableSchema, *, soft: bool, patience_s: float) -> None:
        """Repair what was found and compare it again; the report then has what is left."""
        report = self._verification.report
        self._refuse(schema)
        for _ in range(ROUNDS):
            found = list(self._verification.found)
            if not found:
                return
            before = len(found)
            self._remove([each for each in found if each.kind in ("extra", "duplicate")], schema, soft=soft)
            self._read_again([each.spelled for each in found if each.spelled is not None], schema, patience_s)
            self._verification.found = []
            report.differences, report.shown = {}, []
            self._verification.check([each.key for each in found])
            report.repaired += before - report.differing

    def _refuse(self, schema: TableSchema) -> None:
        report = self._verification.report
        if (schema.key or not report.differing) and report.differing <= COLLECTED:
            return
        raise SinkError(
            "verify.too_much",
            f"{schema.name} has no key" if not schema.key else f"{schema.name} differs in {report.differing:,} rows",
            hint=f"read the table anew: tailrace snapshot PIPELINE --table {schema.name}",
            where=schema.name,
        )

    def _read_again(self, keys: Sequence[str], schema: TableSchema, patience_s: float) -> None:
        """Let the running pipeline read these rows and merge them, as any snapshot."""
        if not keys:
            return
        parts = [
            Extent(keys=tuple(keys[place : place + KEYS_PER_CHUNK])) for place in range(0, len(keys), KEYS_PER_CHUNK)
        ]
        asked = TableRequest(schema.schema, schema.table, f"{len(keys)} keys", len(keys))
        run = self._ledger.request_parts(self._source, REASON, asked, parts, self._log_id)
        waiting = Patience(patience_s, "the pipeline to read the rows again", self._say)
        while (state := self._ledger.run(run)).state == "active":
            waiting.go_on([each.rows_admitted for each in self._ledger.tables(run)])
        if state.error is not None:
            raise SetupError("verify.repair_failed", state.error["message"], hint=state.error["hint"])

    def _remove(self, found: Sequence[Difference], schema: TableSchema, *, soft: bool) -> None:
        """One statement that takes away these rows where they are still as they were compared."""
        target = self._target
        for attempt in range(TRIES if found else 0):
            try:
                _delete(target, found, schema, soft=soft)
                return
            except Exception as error:
                if attempt + 1 == TRIES or not target.is_conflict(error):
                    raise


def _delete(target: Target, found: Sequence[Difference], schema: TableSchema, *, soft: bool) -> None:
    shape = target.existing()
    comparison = Comparison(target.session, schema, {each.name: each.dataType for each in shape.schema.fields})
    present = set(shape.schema.names)
    rows = target.session.createDataFrame([(each.key, each.hash) for each in found], f"{KEY} string, {HASH} long")
    gone = f"UPDATE SET {GONE} = true, {GONE_AT} = current_timestamp()" if soft else "DELETE"
    with viewed(rows) as view:
        target.execute(
            f"MERGE INTO {target.sql_name} t USING {view} s ON {comparison.key_sql(present)} = s.{KEY} "
            f"AND {comparison.hash_sql(present)} = s.{HASH} WHEN MATCHED THEN {gone}"
        )
