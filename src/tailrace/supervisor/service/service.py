"""Every use case of a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tailrace import telemetry
from tailrace.changelog import Subscribers
from tailrace.control.actual import Reason, States, Subject, Transition
from tailrace.control.audit import Audit
from tailrace.control.desired import Desires
from tailrace.control.documents import ABSENT, Documents, Version, content_hash
from tailrace.control.events import EventPage, Events
from tailrace.control.tokens import Tokens
from tailrace.errors import ConfigError, LogError, TailraceError
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.inspect.schemas import TableVersions, tables
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.letters import LetterService, ReplayProgress
from tailrace.supervisor.service.documents import Checked, Content, as_shown, check, merged
from tailrace.supervisor.service.plan import Plan, plan, without_live
from tailrace.supervisor.service.reconciler import Reconciler
from tailrace.supervisor.service.states import PipelineView
from tailrace.supervisor.service.wishes import DesiredState, Wish
from tailrace.supervisor.snapshots.requests import SnapshotRequests
from tailrace.supervisor.status import Status
from tailrace.supervisor.transitions import Transitions

LOOK_S = 5.0
"""How often documents are read again that nobody here has changed."""
DRAIN_S = 120.0


@dataclass(frozen=True)
class PipelineRecord:
    """A pipeline: its document as it may be shown, and what it does. Without a `view`, nobody has looked yet.
    `current`: the view is of this version and of what is desired now."""

    name: str
    version: int
    hash: str
    content: Mapping[str, Any]
    desired: DesiredState | None
    changed_us: int
    actor: str
    view: PipelineView | None
    current: bool = False

    @property
    def state(self) -> str:
        return "created" if self.view is None or self.desired is None else self.view.state


@dataclass(frozen=True)
class Applied:
    """What became of a document."""

    outcome: Literal["created", "changed", "unchanged"]
    plan: Plan
    record: PipelineRecord


class Service:
    """One for each server. `start` begins to make actual what is desired; `close` drains.

    Errors are those of `tailrace.errors`: `pipeline.missing` where there is none of the name, `store.conflict` where
    somebody changed it meanwhile, `config.*` for what is wrong with a document."""

    def __init__(self, platform: Platform, environ: Mapping[str, str] = os.environ) -> None:
        self.platform, self._environ = platform, environ
        self.layout = Layout.of(platform)
        self.store = self.layout.open_store()
        self.started = time.time()
        self._documents, self._desires = Documents(self.store), Desires(self.store)
        self._states, self._events = States(self.store), Events(self.store)
        self._kicks: dict[str, int] = {}
        self._cache: dict[tuple[str, int], Wish] = {}
        self._ran: dict[str, tuple[str, int]] = {}
        """By pipeline: what of its document matters to what runs, as a hash, and since which version."""
        self._wished: list[Wish] = []
        self._looked = float("-inf")
        self._changed = threading.Event()
        self._transitions = Transitions()
        self._reconciler = Reconciler(platform, self._wishes, self._on_view, self._log)
        self._thread = threading.Thread(target=self._reconcile, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finish the batches that run, then end everything. What is not delivered stays in the logs. Once is enough."""
        self._reconciler.end()
        if self._thread.is_alive():
            self._thread.join()
        self.store.close()

    @property
    def is_alive(self) -> bool:
        """Whether somebody still makes actual what is desired."""
        return self._thread.is_alive()

    # -- documents -----------------------------------------------------------------------------------------------

    def validate(self, content: object) -> Checked:
        """Whether a document could be applied; nothing is connected to."""
        return check(content, self._known_content(_name_of(content)), self._environ)

    def plan(self, content: object) -> Plan:
        """What applying the document would change."""
        checked, known = self._checked(content)
        return self._plan(checked, known)

    def apply(
        self,
        content: object,
        *,
        actor: str,
        cause: str = "apply",
        expected_version: int | None = None,
        plan_hash: str | None = None,
    ) -> Applied:
        """Make it so, and run it if it is new. With the hash of a plan: just what that plan says, or
        `plan.outdated`."""
        checked, known = self._checked(content)
        found = self._plan(checked, known)
        if plan_hash is not None and plan_hash != found.hash:
            hint = "look at the plan of now, and apply that one"
            raise ConfigError("plan.outdated", "what is there has changed since the plan was made", hint=hint)
        if expected_version is None:
            expected_version = ABSENT if known is None else known.version  # what the plan was made from
        name = checked.pipeline.name
        made = self._documents.put(
            "pipeline", name, checked.content, expected_version=expected_version, actor=actor, cause=cause
        )
        if self._desires.get(name) is None:
            self._desires.set(name, "running", actor=actor, cause=cause)
        self._wake()
        outcome: Literal["created", "changed", "unchanged"] = "created" if known is None else "changed"
        if known is not None and known.version == made.version:
            outcome = "unchanged"
        return Applied(outcome, found, self.get(name))

    def create(self, content: object, *, actor: str) -> PipelineRecord:
        """Apply a document of a pipeline that must not be there yet. Raises `pipeline.exists`."""
        name = _name_of(content)
        if name is not None and self._documents.get("pipeline", name) is not None:
            hint = "change it (PATCH, or tailrace apply), or choose another name"
            raise ConfigError("pipeline.exists", f"there is a pipeline {name!r} already", hint=hint)
        return self.apply(content, actor=actor, cause="create", expected_version=ABSENT).record

    def patch(self, name: str, changes: object, *, actor: str, expected_version: int | None = None) -> PipelineRecord:
        """A JSON merge patch of its document, which is checked as a whole: one that is wrong changes nothing."""
        known = self._known(name)
        content = merged(as_shown(known.content or {}), changes)
        if _name_of(content) != name:
            hint = "a new name is a new pipeline: apply a document of that name, and delete this one"
            raise ConfigError("pipeline.renamed", f"the patch would rename {name!r}", hint=hint, where="metadata.name")
        return self.apply(
            content, actor=actor, cause="patch", expected_version=expected_version or known.version
        ).record

    def delete(self, name: str, *, actor: str, expected_version: int | None = None) -> None:
        """End the pipeline and forget its document. Its change log, its checkpoints, slots and what sinks have stay:
        see `tailrace undeploy` and `tailrace log forget`."""
        self._known(name)
        self._documents.delete("pipeline", name, expected_version=expected_version, actor=actor, cause="delete")
        self._desires.forget(name)
        self._wake()

    # -- what it shall do ----------------------------------------------------------------------------------------

    def pause(self, name: str, *, actor: str) -> PipelineRecord:
        """Deliver nothing more, and keep reading the source into the log."""
        return self._desire(name, "paused", actor)

    def stop(self, name: str, *, actor: str) -> PipelineRecord:
        """Neither read nor deliver. The source keeps what is not in the log yet."""
        return self._desire(name, "stopped", actor)

    def resume(self, name: str, *, actor: str) -> PipelineRecord:
        """Run. What has failed is tried anew."""
        view = self._reconciler.view(name)
        if view is not None and view.state in ("failed", "degraded"):
            self._kicks[name] = self._kicks.get(name, 0) + 1
        return self._desire(name, "running", actor)

    def _desire(self, name: str, state: DesiredState, actor: str) -> PipelineRecord:
        self._known(name)
        self._desires.set(name, state, actor=actor, cause=state)
        self._wake()
        return self.get(name)

    # -- look ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> PipelineRecord:
        known = self._known(name)
        desired = self._desires.get(name)
        return self._record(known, None if desired is None else desired.state)

    def pipelines(
        self, *, labels: Mapping[str, str | None] | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[PipelineRecord]:
        """By name. `labels`: those that have all of these; None: whatever the value."""
        desires = self._desires.all()
        wanted = {label: value for label, value in (labels or {}).items() if value is not None}
        present = {label for label, value in (labels or {}).items() if value is None}
        found: list[Version] = []
        while page := self._documents.list("pipeline", labels=wanted, after=after, limit=limit):
            after = page[-1].name
            found += [each for each in page if present <= _labels(each).keys()]
            if len(found) >= limit:
                break
        return [
            self._record(each, desires[each.name].state if each.name in desires else None) for each in found[:limit]
        ]

    def history(self, name: str, *, before: int | None = None, limit: int = 100) -> Sequence[Version]:
        """The versions of its document, without their secrets, the newest first."""
        found = self._documents.history("pipeline", name, before=before, limit=limit)
        return [replace(each, content=None if each.content is None else as_shown(each.content)) for each in found]

    def transitions(self, name: str, *, before: int | None = None, limit: int = 100) -> Sequence[Transition]:
        """From which state to which it went, and why, the newest first."""
        return self._states.transitions(name, before=before, limit=limit)

    def events(self, after: int, limit: int = 100) -> EventPage:
        return self._events.after(after, limit)

    def newest_event(self) -> int:
        return self._events.last()

    def status(self) -> Status:
        """Of everything that runs, for figures."""
        views = self._reconciler.views()
        taps = {view.tap.source: view.tap for view in views if view.tap is not None}
        return Status(
            self.started,
            time.time(),
            tuple(taps.values()),
            tuple(sink for view in views for sink in view.sinks),
            tuple(dict.fromkeys(each for view in views for each in view.snapshots)),
            tuple(view.committed for view in views if view.committed is not None),
            tuple(each for view in views for each in view.letters),
        )

    # -- a pipeline's other use cases ------------------------------------------------------------------------------

    def letters(self, name: str) -> LetterService:
        """Its dead letters."""
        return LetterService(self._pipeline(name), self.platform)

    def replay(self, name: str, replay: str, *, forced: bool, rate: int | None) -> ReplayProgress:
        """Have what a dry run chose delivered by the pipeline's runtime. Raises `pipeline.not_running` where nothing of
        it runs: the server itself delivers nothing."""
        view = self._reconciler.view(name)
        if view is None or view.desired != "running":
            hint = "resume the pipeline, or use tailrace dlq replay beside a stopped server"
            raise ConfigError("pipeline.not_running", f"the pipeline {name!r} does not run", hint=hint)
        return self.letters(name).carry_out(replay, forced=forced, rate=rate)

    def snapshots(self, name: str) -> SnapshotRequests:
        """Its snapshots: those under way, and others on request."""
        return SnapshotRequests(self._pipeline(name), self.platform)

    def schemas(self, name: str) -> tuple[TableVersions, ...]:
        """What its log knows of its tables; nothing, where there is no log yet."""
        source = self._pipeline(name).source_id
        if not self.layout.log(source).is_dir():
            return ()
        return tables(self.layout, source)

    def schema(self, name: str, database: str, table: str) -> TableVersions:
        """One of them. Raises `log.no_table`."""
        for found in self.schemas(name):
            if (found.newest.schema.schema, found.newest.schema.table) == (database, table):
                return found
        hint = "list the schemas: names are as the database has them"
        raise LogError("log.no_table", f"the log of {name!r} has no table {database}.{table}", hint=hint)

    def checkpoints(self, name: str) -> dict[str, int]:
        """Below which offset of the log each of its sinks has everything."""
        log = self.layout.log(self._pipeline(name).source_id)
        known = Subscribers(log).all() if log.is_dir() else []
        owners = ((each.owner, each.offset) for each in known)
        return {owner.sink: offset for owner, offset in owners if owner and owner.pipeline == name and not owner.table}

    # -- who may, and who did ------------------------------------------------------------------------------------

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.store)

    @property
    def audit(self) -> Audit:
        return Audit(self.store)

    # -- inside --------------------------------------------------------------------------------------------------

    def _pipeline(self, name: str) -> Pipeline:
        """Its document, with variables filled in."""
        known = self._known(name)
        return check(known.content, known.content, self._environ).pipeline

    def _known(self, name: str) -> Version:
        found = self._documents.get("pipeline", name)
        if found is None:
            hint = "tailrace get lists which there are"
            raise ConfigError("pipeline.missing", f"there is no pipeline {name!r}", hint=hint)
        return found

    def _known_content(self, name: str | None) -> Content | None:
        found = None if name is None else self._documents.get("pipeline", name)
        return None if found is None else found.content

    def _checked(self, content: object) -> tuple[Checked, Version | None]:
        name = _name_of(content)
        known = None if name is None else self._documents.get("pipeline", name)
        return check(content, None if known is None else known.content, self._environ), known

    def _plan(self, checked: Checked, known: Version | None) -> Plan:
        before = None if known is None or known.content is None else as_shown(known.content)
        version = 0 if known is None else known.version
        digest = content_hash(checked.content)
        return plan(checked.pipeline.name, version, before, as_shown(checked.content), digest)

    def _record(self, known: Version, desired: DesiredState | None) -> PipelineRecord:
        view, generation = self._reconciler.view(known.name), (known.version, self._kicks.get(known.name, 0))
        return PipelineRecord(
            known.name,
            known.version,
            known.hash,
            as_shown(known.content or {}),
            desired,
            known.at_us,
            known.actor,
            view,
            view is not None and (view.generation, view.desired) == (generation, desired),
        )

    def _reconcile(self) -> None:
        try:
            self._reconciler.run(DRAIN_S)
        except Exception as error:  # whoever watches the server sees that it is not alive, and starts it again
            telemetry.logger().error("server.failed", error=f"{type(error).__name__}: {error}", hint="please report it")
            raise
        finally:
            self._transitions.end()

    def _log(self) -> None:
        self._transitions.look(self.status())

    def _wake(self) -> None:
        self._changed.set()
        self._reconciler.wake()

    def _wishes(self) -> Sequence[Wish]:
        """What the store says, read when something changed here, and else every few seconds: another server may write
        it too."""
        now = time.monotonic()
        if self._changed.is_set() or now - self._looked >= LOOK_S:
            self._changed.clear()
            desires = self._desires.all()
            found = self._all_documents()
            self._wished = [self._wish(each, desires[each.name].state) for each in found if each.name in desires]
            self._looked = now
        return self._wished

    def _all_documents(self) -> list[Version]:
        found: list[Version] = []
        while page := self._documents.list("pipeline", after=found[-1].name if found else None, limit=500):
            found += page
        return found

    def _wish(self, version: Version, desired: DesiredState) -> Wish:
        known = self._cache.get((version.name, version.version))
        if known is None:
            known = self._read(version)
            if known.error is None:  # a variable that is missing now may be set in the next process only
                self._cache[version.name, version.version] = known
        generation = (self._effective(version), self._kicks.get(version.name, 0))
        return replace(known, generation=generation, desired=desired)

    def _effective(self, version: Version) -> int:
        """The version since which the document says the same about what runs: a change of labels restarts nothing."""
        digest = content_hash(without_live(version.content or {}))
        known, since = self._ran.get(version.name, ("", 0))
        if known != digest:
            self._ran[version.name] = digest, version.version
            return version.version
        return since

    def _read(self, version: Version) -> Wish:
        try:
            pipeline = check(version.content, version.content, self._environ).pipeline
        except TailraceError as error:
            return Wish(version.name, (version.version, 0), "stopped", None, error)
        return Wish(version.name, (version.version, 0), "stopped", pipeline)

    def _on_view(self, view: PipelineView) -> None:
        worst = view.findings[0] if view.findings else None
        reason = None if worst is None else Reason(worst.code, f"{worst.part}: {worst.message}", worst.hint)
        self._states.set(Subject(view.name), view.state, reason, cause=reason.message if reason else "progress")


def _labels(version: Version) -> Mapping[str, str]:
    """Of a document that was checked when it came."""
    found: Mapping[str, str] | None = (version.content or {}).get("metadata", {}).get("labels")
    return found or {}


def _name_of(content: object) -> str | None:
    metadata = content.get("metadata") if isinstance(content, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else None
