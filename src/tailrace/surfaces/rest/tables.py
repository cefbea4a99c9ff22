"""What a pipeline knows of its tables: versions of their schemas, snapshots, how far each sink is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from tailrace.control.ledger import TableRun
from tailrace.control.schemas import SchemaVersion
from tailrace.errors import ConfigError
from tailrace.supervisor.inspect.schemas import TableVersions
from tailrace.supervisor.snapshots.requests import RunProgress
from tailrace.surfaces.rest.access import Operator, Viewer
from tailrace.surfaces.rest.pipelines import MOST, Name, Use
from tailrace.surfaces.rest.shapes import Answer, Checkpoint, ProblemShown

router = APIRouter(tags=["tables"], prefix="/pipelines/{name}")
Database = Annotated[str, Path(description="The table's schema in the database.")]
Table = Annotated[str, Path(description="The table.")]


class SchemaSummary(Answer):
    """A table as it is now."""

    database: str
    table: str
    column_count: int
    primary_key: list[str]
    fingerprint: str
    registry_version: int
    dropped: bool


class ColumnShown(Answer):
    """A column, in the database's own words and in ours (`kind`)."""

    name: str
    column_type: str
    kind: str
    nullable: bool
    ordinal_position: int
    default_value: str | None
    is_primary_key: bool


class SchemaDetail(SchemaSummary):
    """A table with its columns."""

    columns: list[ColumnShown]
    loaded_at: float | None


class SchemaVersionShown(Answer):
    """A version, and where in the log it begins."""

    version: int
    fingerprint: str
    column_count: int
    registered_at: float | None
    position: str
    log_offset: int


class SnapshotRequest(Answer):
    """What to read again. `tables`: patterns; none: all. `where`: SQL over the columns of the tables."""

    tables: list[str] = Field(default_factory=list, max_length=MOST)
    where: str | None = None
    repair: bool = Field(default=False, description="After a lost position: every table is emptied and read again.")


class SnapshotTable(Answer):
    table: str
    state: str
    estimate: int | None
    rows_read: int
    rows_admitted: int
    error: dict[str, str] | None


class SnapshotShown(Answer):
    """A snapshot that was asked for, or that the source's mode wants."""

    id: str
    reason: str
    state: str
    requested_at: float
    ended_at: float | None
    working: bool
    rows: int
    estimate: int | None
    warnings: list[str]
    tables: list[SnapshotTable]


@router.get("/schemas")
def schemas(name: Name, service: Use, caller: Viewer) -> list[SchemaSummary]:
    """Every captured table as the log knows it."""
    return [SchemaSummary(**_summary(each)) for each in service.schemas(name)]


@router.get("/schemas/{database}/{table}")
def schema(name: Name, database: Database, table: Table, service: Use, caller: Viewer) -> SchemaDetail:
    """One, with its columns."""
    found = service.schema(name, database, table)
    newest = found.newest
    key = newest.schema.key
    columns = [
        ColumnShown(
            name=column.name,
            column_type=column.type,
            kind=str(column.kind),
            nullable=column.nullable,
            ordinal_position=place,
            default_value=column.default,
            is_primary_key=column.name in key,
        )
        for place, column in enumerate(newest.schema.columns, 1)
    ]
    return SchemaDetail(**_summary(found), columns=columns, loaded_at=_at(newest))


@router.get("/schemas/{database}/{table}/versions")
def schema_versions(
    name: Name, database: Database, table: Table, service: Use, caller: Viewer
) -> list[SchemaVersionShown]:
    """Its versions, the oldest first."""
    return [
        SchemaVersionShown(
            version=each.schema.id,
            fingerprint=each.fingerprint,
            column_count=len(each.schema.columns),
            registered_at=_at(each),
            position=each.position,
            log_offset=each.log_offset,
        )
        for each in service.schema(name, database, table).versions
    ]


@router.get("/checkpoints")
def checkpoints(name: Name, service: Use, caller: Viewer) -> list[Checkpoint]:
    """How far each sink is in the change log, by its durable progress, also while nothing runs."""
    found = service.checkpoints(name)
    return [Checkpoint(sink_id=sink, position=offset, age_seconds=None) for sink, offset in found.items()]


@router.get("/snapshots")
def snapshots(name: Name, service: Use, caller: Viewer) -> list[SnapshotShown]:
    """Snapshots that are under way."""
    desk = service.snapshots(name)
    return [_snapshot(desk.progress(run.id), desk.warnings) for run in desk.active()]


@router.post("/snapshots")
def request_snapshot(name: Name, wanted: SnapshotRequest, service: Use, caller: Operator) -> SnapshotShown:
    """Read tables again while the pipeline streams."""
    desk = service.snapshots(name)
    run = desk.request(wanted.tables, wanted.where, repair=wanted.repair)
    return _snapshot(desk.progress(run), desk.warnings)


@router.get("/snapshots/{run}")
def snapshot(name: Name, run: str, service: Use, caller: Viewer) -> SnapshotShown:
    """How far one is."""
    desk = service.snapshots(name)
    return _snapshot(desk.progress(run), desk.warnings)


@router.delete("/snapshots")
def cancel_snapshots(name: Name, service: Use, caller: Operator) -> list[str]:
    """End those under way; what is in the log stays there. Answers with their ids."""
    return service.snapshots(name).cancel()


def not_yet(name: Name, service: Use, caller: Viewer) -> None:
    """Planned. Answers 501 until schemas of JSON values are sensed."""
    service.get(name)
    hint = "see /schemas for what the database declares"
    raise ConfigError("feature.not_yet", "schemas of JSON values are not sensed yet", hint=hint)


def not_yet_of(name: Name, table: Table, service: Use, caller: Viewer) -> None:
    """Planned. Answers 501 until schemas of JSON values are sensed."""
    not_yet(name, service, caller)


for _place in (
    "sensing/schemas",
    "sensing/schemas/{table}",
    "sensing/schemas/{table}/json-schema",
    "sensing/schemas/{table}/classifications",
    "sensing/stats",
    "drift",
    "drift/{table}",
):
    router.add_api_route(
        f"/{_place}",
        not_yet_of if "{table}" in _place else not_yet,
        name=_place.replace("/{table}", "_of_table").replace("-", "_").replace("/", "_"),
        deprecated=True,
        responses={501: {"model": ProblemShown}},
    )


def _summary(found: TableVersions) -> dict[str, Any]:
    newest = found.newest
    return {
        "database": newest.schema.schema,
        "table": newest.schema.table,
        "column_count": len(newest.schema.columns),
        "primary_key": list(newest.schema.key),
        "fingerprint": newest.fingerprint,
        "registry_version": newest.schema.id,
        "dropped": found.dropped,
    }


def _at(version: SchemaVersion) -> float | None:
    return version.at_us / 1e6 if version.at_us else None


def _snapshot(progress: RunProgress, warnings: list[str]) -> SnapshotShown:
    run = progress.run
    return SnapshotShown(
        id=run.id,
        reason=run.reason,
        state=run.state,
        requested_at=run.created_us / 1e6,
        ended_at=None if run.finished_us is None else run.finished_us / 1e6,
        working=progress.working,
        rows=progress.rows,
        estimate=progress.estimate,
        warnings=list(warnings),
        tables=[_table(each) for each in progress.tables],
    )


def _table(table: TableRun) -> SnapshotTable:
    fields = asdict(table)
    kept = {name: fields[name] for name in ("state", "estimate", "rows_read", "rows_admitted", "error")}
    return SnapshotTable(table=table.name, **kept)
