"""`tailrace demo`: the whole road on an embedded PostgreSQL, with nothing to install or configure."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import SinkError
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.steps import Steps

if TYPE_CHECKING:
    from tailrace.demo import DemoFolder, Outcome
    from tailrace.supervisor.status import Status
    from tailrace.testing.servers import PostgresServer

DIRECTORY = Path("tailrace-demo")
STARTING = "starting Spark and the tap"


def demo(
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this many seconds of changes.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Continue with what the last demo left.")] = False,
    rate: Annotated[float, typer.Option(min=1, max=20_000, help="Changes a second, about.")] = 200,
    since: Annotated[
        float | None,
        typer.Option(
            help="When the wait for the first row began, in seconds since 1970; `make demo` says when it was called. "
            "Absent: now."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch a small shop's changes go from PostgreSQL to files and a lake, in ./tailrace-demo. Ctrl-C ends it."""
    from tailrace.surfaces.cli import live

    with guard(as_json), Steps(since) as steps:
        steps.begin("starting PostgreSQL")
        from tailrace.demo import Demo, claim, fetch_ahead

        with claim(DIRECTORY, keep=keep) as place:
            fetch_ahead(place)
            with _database(place) as server:
                dsn = server.dsn("shop")
                shop = Demo(place, dsn, rate=rate, tell=steps.begin)
                if not as_json:
                    _explain(place, str(server.bin("psql")), dsn)
                if _first_run():
                    steps.tell("the decoder is compiled first (once, up to a minute)")
                steps.begin(STARTING)
                first = FirstRow(steps)
                with live.view(as_json) as show:

                    def tick(status: Status) -> None:
                        show(status)
                        first.look(status)

                    outcome = shop.run(seconds, tick)
        _report(outcome, place, first.seconds, as_json)


class FirstRow:
    """When a sink had its first row, in seconds since the demo was asked for."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.seconds: float | None = None

    def look(self, status: Status) -> None:
        """At each status, in order."""
        if self.seconds is None and any(table.rows for sink in status.sinks for table in sink.tables.values()):
            self.seconds = round(self._steps.seconds, 1)
            self._steps.tell("the first row is delivered")
            self._steps.end(STARTING)


@contextmanager
def _database(place: DemoFolder) -> Iterator[PostgresServer]:
    """PostgreSQL refuses to run as root; the user it then runs as may have no way into our directory."""
    from tailrace.testing.servers import PostgresServer
    from tailrace.testing.servers.process import reachable, unprivileged

    account = unprivileged()
    if account is not None and not place.postgres.exists() and not reachable(place.root, account):
        place.postgres.symlink_to(tempfile.mkdtemp(prefix="tailrace-demo-"))
    place.postgres.mkdir(exist_ok=True)
    with PostgresServer(directory=place.postgres.resolve()) as server:
        yield server


def _first_run() -> bool:
    """The compiled decoder is kept beside its source, and made anew when that is newer."""
    import tailrace.capture.postgres as decoder

    folder = Path(decoder.__path__[0])
    source = max(file.stat().st_mtime for file in folder.glob("*.py"))
    return source >= max((file.stat().st_mtime for file in folder.glob("__pycache__/*.nbi")), default=0.0)


def _explain(place: DemoFolder, psql: str, dsn: str) -> None:
    change = "UPDATE customers SET name = 'Ada Lovelace' WHERE id = 1"
    command = f'{shlex.quote(psql)} {dsn} -c "{change}"'
    find = f"grep -rh 'Ada Lovelace' {shlex.quote(str(place.files / 'public.customers'))} | tail -n 1"
    _tell(f"a small shop's changes go from PostgreSQL to {place.files}, its tables to {place.lake}")
    _tell(f"the pipeline that does it is {place.root / 'pipeline.yaml'}")
    _tell(f"change a row yourself, in another terminal, once rows are delivered:\n  {command}")
    _tell(f"a second later the change is here:\n  {find}")
    _tell("Ctrl-C ends it")


def _report(outcome: Outcome, place: DemoFolder, first_row_s: float | None, as_json: bool) -> None:
    if outcome.unequal:
        raise SinkError(
            "demo.unequal",
            f"not all is as the source has it: {'; '.join(outcome.unequal)}",
            hint=f"keep {place.root} and report it",
        )
    if as_json:
        proofs = [asdict(proof) for proof in outcome.proofs or ()]
        lake = [{"table": each.table, "rows": each.rows, "differing": each.differing} for each in outcome.lake]
        compared = outcome.proofs is not None
        answer = {"ok": True, "compared": compared, "rows": outcome.rows, "tables": proofs, "lake": lake}
        say_json({**answer, "first_row_s": first_row_s})
        return
    if outcome.proofs is None:
        say("stopped before everything was delivered; `tailrace demo --keep` continues")
        return
    for proof in outcome.proofs:
        say(f"{proof.table:12} {proof.changes:>9,} changes delivered, {proof.rows:>9,} rows")
    say(f"source, files and Delta tables are equal: {outcome.rows:,} rows", color="green")
    if first_row_s is not None:
        say(f"the first row was delivered {first_row_s:.0f} s after the start")
    say(f"the files are in {place.files}; `tailrace demo --keep` continues")
    say(f"the tables themselves are in {place.lake}, as Delta; ask them:\n  {_query(place)}")


def _query(place: DemoFolder) -> str:
    documents = f"{shlex.quote(str(place.root / 'pipeline.yaml'))} --platform-config {place.root / 'platform.yaml'}"
    return f"tailrace lakehouse query {documents} --table public.orders --limit 5"


def _tell(text: str) -> None:
    """Progress, beside the result: standard output has only that."""
    typer.echo(text, err=True)
