"""The command line. One module per command; each imports what it needs when it runs, so that all start fast.

Exit codes: 0 ok, 1 it failed while running, 2 a document or the call is wrong, 3 the machine is not ready.
"""

from __future__ import annotations

import typer

from tailrace.surfaces.cli.apply import apply
from tailrace.surfaces.cli.checkpoints import checkpoints
from tailrace.surfaces.cli.consume import consume
from tailrace.surfaces.cli.demo import demo
from tailrace.surfaces.cli.deploy import deploy, undeploy
from tailrace.surfaces.cli.describe import describe
from tailrace.surfaces.cli.desire import delete, pause, resume, stop
from tailrace.surfaces.cli.dlq import dlq
from tailrace.surfaces.cli.doctor import doctor
from tailrace.surfaces.cli.events import events
from tailrace.surfaces.cli.explore import explore
from tailrace.surfaces.cli.get import get
from tailrace.surfaces.cli.health import health
from tailrace.surfaces.cli.lakehouse import lakehouse
from tailrace.surfaces.cli.log import log
from tailrace.surfaces.cli.new import new
from tailrace.surfaces.cli.run import run
from tailrace.surfaces.cli.schema import schema
from tailrace.surfaces.cli.schemas import schemas
from tailrace.surfaces.cli.serve import serve
from tailrace.surfaces.cli.snapshot import snapshot
from tailrace.surfaces.cli.status import status
from tailrace.surfaces.cli.token import token
from tailrace.surfaces.cli.trace import trace
from tailrace.surfaces.cli.trial import test
from tailrace.surfaces.cli.validate import validate
from tailrace.surfaces.cli.verify import verify
from tailrace.surfaces.cli.version import version

app = typer.Typer(
    name="tailrace",
    help="Every committed change of a database, carried to every place that needs it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_HERE = (
    validate,
    test,
    doctor,
    deploy,
    run,
    serve,
    explore,
    trace,
    consume,
    snapshot,
    verify,
    undeploy,
    demo,
    schema,
    version,
)
_AT_A_SERVER = (apply, get, describe, pause, resume, stop, delete, status, health, checkpoints, events)
for _command in (*_HERE, *_AT_A_SERVER):
    app.command()(_command)
app.add_typer(log, name="log")
app.add_typer(schemas, name="schemas")
app.add_typer(lakehouse, name="lakehouse")
app.add_typer(dlq, name="dlq")
app.add_typer(new, name="new")
app.add_typer(token, name="token")


def main() -> None:
    """The `tailrace` command."""
    app(prog_name="tailrace")
