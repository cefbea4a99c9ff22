"""What pipelines are to do: run, pause or stop. The reconciler makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from tailrace.control.audit import add_audit
from tailrace.control.events import add_event
from tailrace.control.store import Store
from tailrace.control.tables import desired_states
from tailrace.control.upsert import put

Wish = Literal["running", "paused", "stopped"]
_AT = desired_states.c


@dataclass(frozen=True)
class Desired:
    """What a pipeline is to do, who said so and why."""

    pipeline: str
    state: Wish
    at_us: int
    actor: str
    cause: str


class Desires:
    """What each pipeline of a store is to do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, pipeline: str, state: Wish, *, actor: str, cause: str) -> Desired:
        """The same again changes nothing, and who said it first stays."""
        with self._store.transaction() as connection:
            row = connection.execute(sa.select(desired_states).where(_AT.pipeline == pipeline)).one_or_none()
            if row is not None and row.state == state:
                return Desired(*row)
            made = Desired(pipeline, state, self._store.now_us(connection), actor, cause)
            put(connection, desired_states, vars(made))
            detail = {"from": None if row is None else row.state, "to": state}
            add_audit(
                self._store, connection, actor, "pipeline.desire", "pipeline", pipeline, detail | {"cause": cause}
            )
            add_event(self._store, connection, "pipeline", pipeline, "pipeline.desire", detail)
        return made

    def get(self, pipeline: str) -> Desired | None:
        """None: nobody has said."""
        with self._store.reading() as connection:
            row = connection.execute(sa.select(desired_states).where(_AT.pipeline == pipeline)).one_or_none()
        return None if row is None else Desired(*row)

    def all(self) -> dict[str, Desired]:
        """By pipeline."""
        with self._store.reading() as connection:
            return {row.pipeline: Desired(*row) for row in connection.execute(sa.select(desired_states))}

    def forget(self, pipeline: str) -> None:
        """The pipeline is gone."""
        with self._store.transaction() as connection:
            connection.execute(sa.delete(desired_states).where(_AT.pipeline == pipeline))
