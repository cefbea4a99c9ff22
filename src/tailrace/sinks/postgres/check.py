"""What `tailrace doctor` looks at in the database of a sink. Unlike the sink itself it makes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
from psycopg import sql

from tailrace.contracts import Check, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.postgres.connection import Address, Session, told
from tailrace.sinks.postgres.ledger import Ledger

OLDEST = 150000
_SERVER = "SELECT version(), current_setting('server_version_num')::int, pg_is_in_recovery(), current_database()"
_MAY = """
SELECT CASE WHEN to_regnamespace(%s) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(%s, 'CREATE') END"""


def check_database(subject: Subject, address: Callable[[], Address], ledger: Ledger) -> Iterator[Check]:
    """Whether the server lets the sink in, and lets it keep its marks."""
    try:
        with closing(address().connect()) as session:
            yield from _look(subject, session, ledger)
    except TailraceError as error:
        yield subject.failed("database", error)
        yield subject.skipped("marks", "the database does not answer")


def _look(subject: Subject, session: Session, ledger: Ledger) -> Iterator[Check]:
    [(version, number, standby, database)] = session.rows(sql.SQL(_SERVER))
    name = f"{database}, {' '.join(version.split()[:2])}"
    if standby:
        yield subject.fail("database", f"{name} is a standby, which takes no writes", "name the primary in dsn")
    elif number < OLDEST:
        yield subject.fail("database", f"{name} is too old", "use PostgreSQL 15 or newer")
    else:
        yield subject.ok("database", name)
    yield _marks(subject, session, ledger)


def _marks(subject: Subject, session: Session, ledger: Ledger) -> Check:
    try:
        if ledger.exists(session, "marks") and ledger.exists(session, "tables"):
            return subject.ok("marks", f"in the schema {ledger.schema}")
        schema = session.text(sql.Identifier(ledger.schema))
        [(may,)] = session.rows(sql.SQL(_MAY), (schema, schema))
    except psycopg.Error as error:
        return subject.fail("marks", told(error), "grant the sink's role what it needs")
    if may:
        return subject.ok("marks", f"the schema {ledger.schema} will be made")
    fix = f"make the schema {ledger.schema} for the sink's role, or grant it CREATE on the database"
    return subject.fail("marks", f"the role may not make the schema {ledger.schema}", fix)
