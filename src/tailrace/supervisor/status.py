"""What is going on, as plain data: for the terminal, `--json` and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tailrace.histogram import NO_ROWS, NO_SECONDS, Histogram

TapState = Literal["starting", "running", "waiting", "blocked", "silent", "failed", "stopped"]
SinkState = Literal["starting", "running", "waiting", "expired", "failed", "stopped"]


@dataclass(frozen=True)
class HolderStatus:
    """A subscriber that holds the log above its bound, so that the tap is `blocked`. See `changelog.retention`."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class TapStatus:
    """A source's tap, as it last told, `age_s` ago. What is not known is None. A tap that should run and has not told
    anything for a while is `silent`.

    `settled` is the source position up to which everything committed is in the log, which ends at offset `head`. The
    log is `lag_bytes` of WAL and at most `lag_s` behind the server. The slot holds `held_bytes` there; `safe_wal_size`
    more may be written before it is lost (None: no bound), in `time_to_loss_s` as things go.

    Since the run began the log has grown by `log_bytes`, and by `snapshot_rows` beside the stream's `rows`. `schemas`
    says how many versions of each table it knows, `errors` how often an attempt of the process failed, by code.
    """

    source: str
    state: TapState = "starting"
    pid: int | None = None
    age_s: float | None = None
    restarts: int = 0
    rows: int = 0
    transactions: int = 0
    last_commit_us: int | None = None
    received_lsn: int | None = None
    durable_lsn: int | None = None
    settled: str = ""
    wal_status: str = ""
    lag_bytes: int | None = None
    lag_s: float | None = None
    held_bytes: int | None = None
    safe_wal_size: int | None = None
    time_to_loss_s: float | None = None
    head: int | None = None
    log_bytes: int = 0
    snapshot_rows: int = 0
    schemas: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    holders: tuple[HolderStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    error: dict[str, str] | None = None


@dataclass(frozen=True)
class TableStatus:
    """What a sink got of one table since the run began; `last_us` is its newest change's commit time. `bytes` are those
    of rendered records; None where the sink gets none."""

    rows: int
    bytes: int | None
    last_us: int | None


@dataclass(frozen=True)
class DebtStatus:
    """What a lake table's upkeep would remove, when it was last looked at. See `sinks.tables.Debt`."""

    files: int
    small_files: int
    delete_files: int
    snapshots: int


@dataclass(frozen=True)
class DropStatus:
    """Changes of a table that a processor dropped for a reason of its own since the run began. Before a table that
    mirrors its source, they became deletes."""

    table: str
    processor: str
    reason: str
    changes: int


@dataclass(frozen=True)
class SkipStatus:
    """Records of a table that a sink's target refused and that are gone, by the error's code, since the run began."""

    table: str
    code: str
    records: int


@dataclass(frozen=True)
class LetterGroup:
    """Dead letters of a sink with one error code that something is left to do about."""

    sink: str
    code: str
    letters: int


@dataclass(frozen=True)
class LetterStatus:
    """A pipeline's dead letters: those that something is left to do about (`held` of them only because an earlier one
    of their key is), by `groups`, the bound, and how many are gone for want of room or for their age."""

    pipeline: str
    open: int
    held: int
    max_entries: int
    evicted: int
    expired: int
    warnings: tuple[str, ...] = ()
    groups: tuple[LetterGroup, ...] = ()


@dataclass(frozen=True)
class SinkStatus:
    """A sink of a pipeline. Everything below `offset` is delivered; `lag_rows` of `lag_bytes` wait in the log, the
    oldest of them for `lag_s`. They are None while they are not known: before its query began, or where the log cannot
    be read. `lag_tables_s` is how long the oldest of each table has waited; None: not known of any. `debt` is by table,
    of sinks that tend their tables. `errors` says how often an attempt failed, by code. For `delay_s`, `batch_s`,
    `batch_rows` and `last_delivery` see `spark.pulse.Pulse`. A sink is `expired` where the log no longer has what it
    lacks: its `error` names the snapshot that brings it. It stops for good as soon as its target can be asked."""

    pipeline: str
    sink: str
    kind: str
    source: str
    state: SinkState = "starting"
    offset: int | None = None
    lag_rows: int | None = None
    lag_s: float | None = None
    batches: int = 0
    bound_limited: int = 0
    tables: dict[str, TableStatus] = field(default_factory=dict)
    dropped: tuple[DropStatus, ...] = ()
    skipped: tuple[SkipStatus, ...] = ()
    debt: dict[str, DebtStatus] = field(default_factory=dict)
    lag_bytes: int | None = None
    lag_tables_s: dict[str, float] | None = None
    delay_s: Histogram = NO_SECONDS
    batch_s: Histogram = NO_SECONDS
    batch_rows: Histogram = NO_ROWS
    last_delivery: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: dict[str, str] | None = None


@dataclass(frozen=True)
class PipelineStatus:
    """Everything below the offset `committed` counts as delivered, by the commit policy `mode`; None: not known yet."""

    pipeline: str
    mode: str
    committed: int | None


@dataclass(frozen=True)
class SnapshotStatus:
    """A table of a snapshot that is under way, or that could not be read (`failed`) and was not since. `estimate` is
    the database's guess of its rows, where it has one. `error` is why it failed, or what it waits for."""

    source: str
    run: str
    table: str
    state: str
    rows: int
    estimate: int | None
    error: dict[str, str] | None = None


@dataclass(frozen=True)
class Status:
    """One look at a run."""

    started: float
    at: float
    taps: tuple[TapStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    snapshots: tuple[SnapshotStatus, ...] = ()
    pipelines: tuple[PipelineStatus, ...] = ()
    letters: tuple[LetterStatus, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
