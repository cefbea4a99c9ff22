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

if TYPE_CHECKING:
    from tailrace.demo import DemoFolder, Outcome
    from tailrace.testing.servers import PostgresServer

DIRECTORY = Path("tailrace-demo")


def demo(
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this many seconds of changes.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Continue with what the last demo left.")] = False,
    rate: Annotated[float, typer.Option(min=1, max=20_000, help="Changes a second, about.")] = 200,
    as_json: Json = False,
) -> None:
    """Watch a small shop's changes go from PostgreSQL to files and a lake, in ./tailrace-demo. Ctrl-C ends it."""
    with guard(as_json):
        from tailrace.demo import Demo, claim
        from tailrace.surfaces.cli import live

        _tell("starting PostgreSQL…")
        with claim(DIRECTORY, keep=keep) as place, _database(place) as server:
            dsn = server.dsn("shop")
            shop = Demo(place, dsn, rate=rate)
            if not as_json:
                _explain(place, str(server.bin("psql")), dsn)
            _tell("starting Spark and the tap…" + _first_run())
            with live.view(as_json) as on_tick:
                outcome = shop.run(seconds, on_tick)
        _report(outcome, place, as_json)


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


def _first_run() -> str:
    """The compiled decoder is kept beside its source, and made anew when that is newer."""
    import tailrace.capture.postgres as decoder

    folder = Path(decoder.__path__[0])
    source = max(file.stat().st_mtime for file in folder.glob("*.py"))
    kept = max((file.stat().st_mtime for file in folder.glob("__pycache__/*.nbi")), default=0.0)
    return "" if kept > source else " compiling the decoder takes a minute, the first time only"


def _explain(place: DemoFolder, psql: str, dsn: str) -> None:
    change = "UPDATE customers SET name = 'Ada Lovelace' WHERE id = 1"
    command = f'{shlex.quote(psql)} {dsn} -c "{change}"'
    find = f"grep -rh 'Ada Lovelace' {shlex.quote(str(place.files / 'public.customers'))} | tail -n 1"
    _tell(f"a small shop's changes go from PostgreSQL to {place.files}, its tables to {place.lake}")
    _tell(f"the pipeline that does it is {place.root / 'pipeline.yaml'}")
    _tell(f"change a row yourself, in another terminal, once rows are delivered:\n  {command}")
    _tell(f"a second later the change is here:\n  {find}")
    _tell("Ctrl-C ends it")


def _report(outcome: Outcome, place: DemoFolder, as_json: bool) -> None:
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
        say_json({"ok": True, "compared": compared, "rows": outcome.rows, "tables": proofs, "lake": lake})
        return
    if outcome.proofs is None:
        say("stopped before everything was delivered; `tailrace demo --keep` continues")
        return
    for proof in outcome.proofs:
        say(f"{proof.table:12} {proof.changes:>9,} changes delivered, {proof.rows:>9,} rows")
    say(f"source, files and Delta tables are equal: {outcome.rows:,} rows", color="green")
    say(f"the files are in {place.files}; `tailrace demo --keep` continues")
    say(f"the tables themselves are in {place.lake}, as Delta; ask them:\n  {_query(place)}")


def _query(place: DemoFolder) -> str:
    documents = f"{shlex.quote(str(place.root / 'pipeline.yaml'))} --platform-config {place.root / 'platform.yaml'}"
    return f"tailrace lakehouse query {documents} --table public.orders --limit 5"


def _tell(text: str) -> None:
    """Progress, beside the result: standard output has only that."""
    typer.echo(text, err=True)
