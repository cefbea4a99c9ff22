"""The store's tables, as they are now. How a store gets there is in `migrations.py`; a test compares the two."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()


def _text(name: str, *, key: bool = False, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=null)


def _number(name: str, *, key: bool = False, null: bool = False, default: int | None = None) -> sa.Column[int]:
    start = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=null, autoincrement=False, server_default=start)


def _run() -> sa.Column[str]:
    return sa.Column("run", sa.Text, sa.ForeignKey("snapshot_runs.id", ondelete="CASCADE"), primary_key=True)


store_version = sa.Table("store_version", METADATA, _number("version"))

snapshot_runs = sa.Table(
    "snapshot_runs",
    METADATA,
    _text("id", key=True),
    _text("source"),
    _text("reason"),
    _text("state"),
    _text("log_id"),
    _number("since"),
    _number("created_us"),
    _number("finished_us", null=True),
    _text("error", null=True),
    sa.Index("snapshot_runs_of_source", "source", "state"),
)

snapshot_tables = sa.Table(
    "snapshot_tables",
    METADATA,
    _run(),
    _text("schema_name", key=True),
    _text("table_name", key=True),
    _text("filter", null=True),
    _text("state"),
    _number("estimate", null=True),
    _number("rows_read", default=0),
    _number("rows_admitted", default=0),
    _text("error", null=True),
)

snapshot_chunks = sa.Table(
    "snapshot_chunks",
    METADATA,
    _run(),
    _text("schema_name", key=True),
    _text("table_name", key=True),
    _number("number", key=True),
    _text("extent"),
    _text("state"),
    _number("attempts", default=0),
    _text("staged", null=True),
    sa.Index("snapshot_chunks_by_state", "run", "state"),
)

snapshot_debts = sa.Table(
    "snapshot_debts",
    METADATA,
    _run(),
    _text("schema_name", key=True),
    _text("table_name", key=True),
    _text("row_key", key=True),
)

indexed = sa.Table("indexed", METADATA, _text("source", key=True), _text("log_id"), _number("log_offset"))

schema_versions = sa.Table(
    "schema_versions",
    METADATA,
    _text("source", key=True),
    _text("log_id", key=True),
    _number("version", key=True),
    _text("schema_name"),
    _text("table_name"),
    _text("content"),
    _text("fingerprint"),
    _text("position"),
    _number("log_offset"),
    _number("at_us"),
    sa.Index("schema_versions_of_table", "source", "schema_name", "table_name", "version"),
)

catalog_sightings = sa.Table(
    "catalog_sightings",
    METADATA,
    _text("source", key=True),
    _text("schema_name", key=True),
    _text("table_name", key=True),
    _text("seen"),
)

dead_letters = sa.Table(
    "dead_letters",
    METADATA,
    _text("pipeline", key=True),
    _number("number", key=True),
    _text("sink"),
    _text("processor"),
    _text("source"),
    _text("log_id"),
    _number("seq"),
    _text("part"),
    _text("event_id"),
    _text("op"),
    _text("schema_name"),
    _text("table_name"),
    _text("row_key", null=True),
    _number("schema_id"),
    _text("position"),
    _number("ts_us"),
    _text("code"),
    _text("message"),
    _text("state"),
    _number("cut"),
    _text("packed_row"),
    _number("attempts", default=1),
    _number("first_us"),
    _number("last_us"),
    sa.Index("dead_letters_once", "pipeline", "sink", "event_id", unique=True),
    sa.Index("dead_letters_by_state", "pipeline", "state", "sink", "number"),
)

dead_letter_totals = sa.Table(
    "dead_letter_totals",
    METADATA,
    _text("pipeline", key=True),
    _number("last_number", default=0),
    _number("evicted", default=0),
    _number("expired", default=0),
)

letter_replays = sa.Table(
    "letter_replays",
    METADATA,
    _text("id", key=True),
    _text("pipeline"),
    _text("state"),
    _number("forced"),
    _number("rate", null=True),
    _number("created_us"),
    _text("error", null=True),
)

replayed_letters = sa.Table(
    "replayed_letters",
    METADATA,
    sa.Column("replay", sa.Text, sa.ForeignKey("letter_replays.id", ondelete="CASCADE"), primary_key=True),
    _number("number", key=True),
    _text("sink"),
    _text("verdict"),
    _text("outcome", null=True),
    _text("reason"),
)

counters = sa.Table("counters", METADATA, _text("name", key=True), _number("value"))

documents = sa.Table(
    "documents",
    METADATA,
    _text("kind", key=True),
    _text("name", key=True),
    _number("version"),
    _text("content"),
    _text("hash"),
    _number("at_us"),
    _text("actor"),
    _text("cause"),
)

document_versions = sa.Table(
    "document_versions",
    METADATA,
    _text("kind", key=True),
    _text("name", key=True),
    _number("version", key=True),
    _text("content", null=True),
    _text("hash"),
    _number("at_us"),
    _text("actor"),
    _text("cause"),
)

document_labels = sa.Table(
    "document_labels",
    METADATA,
    _text("kind", key=True),
    _text("name", key=True),
    _text("label", key=True),
    _text("value"),
)

desired_states = sa.Table(
    "desired_states",
    METADATA,
    _text("pipeline", key=True),
    _text("state"),
    _number("at_us"),
    _text("actor"),
    _text("cause"),
)

actual_states = sa.Table(
    "actual_states",
    METADATA,
    _text("kind", key=True),
    _text("name", key=True),
    _text("part", key=True),
    _text("state"),
    _number("since_us"),
    _text("code"),
    _text("message"),
    _text("hint"),
)

transitions = sa.Table(
    "transitions",
    METADATA,
    _number("number", key=True),
    _text("kind"),
    _text("name"),
    _text("part"),
    _text("before", null=True),
    _text("after"),
    _text("code"),
    _text("cause"),
    _text("actor"),
    _number("at_us"),
    sa.Index("transitions_of_object", "kind", "name", "number"),
)

audit = sa.Table(
    "audit",
    METADATA,
    _number("number", key=True),
    _text("actor"),
    _text("action"),
    _text("kind"),
    _text("name"),
    _text("detail"),
    _number("at_us"),
    sa.Index("audit_of_object", "kind", "name", "number"),
)

tokens = sa.Table(
    "tokens",
    METADATA,
    _text("id", key=True),
    _text("name"),
    _text("hash"),
    _text("scope"),
    _number("sees_values"),
    _number("created_us"),
    _number("expires_us", null=True),
    _number("last_used_us", null=True),
    _number("revoked_us", null=True),
)

operations = sa.Table(
    "operations",
    METADATA,
    _text("id", key=True),
    _number("number"),
    _text("kind"),
    _text("object"),
    _text("actor"),
    _text("request"),
    _text("idempotency_key", null=True),
    _text("state"),
    _text("holder", null=True),
    _text("progress"),
    _text("result", null=True),
    _text("error", null=True),
    _number("requested_us"),
    _number("started_us", null=True),
    _number("ended_us", null=True),
    _number("cancel_requested", default=0),
    sa.Index("operations_by_number", "number", unique=True),
    sa.Index("operations_once", "kind", "idempotency_key", unique=True),
    sa.Index("operations_by_state", "state", "number"),
)

leases = sa.Table("leases", METADATA, _text("name", key=True), _text("holder"), _number("epoch"), _number("expires_us"))

events = sa.Table(
    "events",
    METADATA,
    _number("number", key=True),
    _number("at_us"),
    _text("kind"),
    _text("name"),
    _text("type"),
    _text("data"),
)
