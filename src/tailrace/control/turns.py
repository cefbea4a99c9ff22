"""The kinds of transactions a store has. SQLAlchemy's `begin` event is told which one begins."""

from __future__ import annotations

from typing import Literal, cast

import sqlalchemy as sa

Turn = Literal["write", "read", "statement"]
"""`write`: one after another. `read`: waits for nobody. `statement`: one statement, which waits for its rows alone."""


def of_turn(engine: sa.Engine, turn: Turn) -> sa.Engine:
    """The engine, for transactions of this kind."""
    return engine.execution_options(tailrace_turn=turn)


def turn_of(connection: sa.Connection) -> Turn:
    return cast(Turn, connection.get_execution_options().get("tailrace_turn", "write"))
