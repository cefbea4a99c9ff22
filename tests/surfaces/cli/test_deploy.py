"""`tailrace deploy` and `undeploy` on a real server, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.capture.postgres.connection import ReplicationStream
from tailrace.supervisor.layout import Layout, run_lock
from tailrace.surfaces.cli import app
from tailrace.testing.failpoints import dies_at
from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Database

DOCUMENT = """\
metadata: {{name: {id}}}
spec:
  source: {{type: postgres, config: {{id: {id}, dsn: "{dsn}", tables: [public.*], publication: {publication}}}}}
  sinks: [{{type: console, config: {{id: screen}}}}]
"""


class Shop:
    """A database with a table, and the documents about it."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db, self.folder = db, folder
        self.slot = self.publication = db.source().slot_name
        self.platform = folder / "platform.yaml"
        self.platform.write_text(f"data_dir: {folder / 'data'}\n")
        self.layout = Layout(folder / "data")
        db.run("CREATE TABLE orders (id int PRIMARY KEY)")

    def tailrace(self, command: str, *options: str, publication: str = "", answer: str = "") -> Result:
        document = self.folder / "shop.yaml"
        name = publication or self.publication
        document.write_text(DOCUMENT.format(id=self.db.name, dsn=self.db.dsn, publication=name))
        arguments = [command, str(document), "--platform-config", str(self.platform), *options]
        return CliRunner().invoke(app, arguments, input=answer)

    def parts(self, command: str, *options: str) -> list[tuple[str, str, bool]]:
        done = self.tailrace(command, "--json", *options)
        assert done.exit_code == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["sources"][self.db.name]
        return [(one["kind"], one["name"], one["made"]) for one in found]

    def left(self) -> tuple[list[str], list[str]]:
        slots = self.db.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
        publications = self.db.rows("SELECT pubname FROM pg_publication ORDER BY 1")
        return [name for (name,) in slots], [name for (name,) in publications]

    def published(self) -> list[Any]:
        """What the publications are, in full."""
        query = (
            "SELECT pubname, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, obj_description(oid), "
            "ARRAY(SELECT prrelid::regclass::text FROM pg_publication_rel r WHERE prpubid = p.oid ORDER BY 1) "
            "FROM pg_publication p ORDER BY 1"
        )
        return self.db.rows(query)


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    with Database(postgres) as db:
        yield Shop(db, tmp_path)


def test_deploy_holds_changes_for_the_first_run(shop: Shop) -> None:
    names = [("publication", shop.publication), ("publication", f"{shop.publication}_inserts"), ("slot", shop.slot)]
    assert shop.parts("deploy") == [(*name, True) for name in names]
    assert shop.parts("deploy") == [(*name, False) for name in names]
    shop.db.run("INSERT INTO orders VALUES (1)")
    with Capturing(shop.db, shop.layout.log(shop.db.name)) as run:
        assert [row["key"] for row in run.changes()] == ['{"id":1}']


def test_deploy_never_makes_anew_what_a_log_needs(shop: Shop) -> None:
    with Capturing(shop.db, shop.layout.log(shop.db.name)) as run:
        run.stop()
    shop.db.drop_slots()
    done = shop.tailrace("deploy")
    assert done.exit_code == 1
    assert "error[source.position_lost]" in done.stderr
    assert "--repair" in done.stderr
    assert shop.left()[0] == []


@pytest.mark.parametrize("point", ["publications.after_change", "slot.after_create"])
def test_a_deploy_that_was_killed_is_finished_by_the_next(shop: Shop, point: str) -> None:
    """At the server is what a deploy makes that nobody killed, and the first run starts there."""
    shop.db.run("CREATE TABLE keyless (n int)")
    shop.tailrace("deploy")
    whole = shop.left(), shop.published()
    shop.tailrace("undeploy", "--yes")
    with dies_at(point):
        shop.tailrace("deploy")
    assert [name for _, name, _ in shop.parts("deploy")] == [*whole[0][1], shop.slot]
    assert (shop.left(), shop.published()) == whole
    shop.db.run("INSERT INTO orders VALUES (1)", "UPDATE orders SET id = 2", "INSERT INTO keyless VALUES (3)")
    with Capturing(shop.db, shop.layout.log(shop.db.name)) as run:
        assert [(row["table"], row["op"]) for row in run.changes()] == [
            *[("orders", op) for op in "cdc"],
            ("keyless", "c"),
        ]


@pytest.mark.parametrize("point", ["undeploy.after_slot", "undeploy.after_publication"])
def test_an_undeploy_that_was_killed_is_finished_by_the_next(shop: Shop, point: str) -> None:
    shop.tailrace("deploy")
    with dies_at(point):
        shop.tailrace("undeploy", "--yes")
    assert shop.left() != ([], [])
    assert shop.tailrace("undeploy", "--yes").exit_code == 0
    assert shop.left() == ([], [])
    assert {made for _, _, made in shop.parts("deploy")} == {True}


def test_undeploy_says_what_it_drops_and_asks(shop: Shop) -> None:
    shop.tailrace("deploy")
    kept = shop.left()
    refused = shop.tailrace("undeploy", answer="n\n")
    assert refused.exit_code == 1
    for part in (f"will drop slot {shop.slot} (at ", f"will drop publication {shop.publication} (public.orders)"):
        assert part in refused.stderr
    assert shop.left() == kept
    done = shop.tailrace("undeploy", answer="y\n")
    assert done.exit_code == 0, done.stderr
    assert f"dropped slot {shop.slot}" in done.stdout
    assert shop.left() == ([], [])
    assert shop.tailrace("undeploy").stdout == "nothing to drop\n"


def test_undeploy_leaves_a_publication_of_the_users(shop: Shop) -> None:
    shop.db.run("CREATE PUBLICATION mine FOR TABLE orders")
    shop.tailrace("deploy", publication="mine")
    assert shop.left() == ([shop.slot], ["mine"])
    done = shop.tailrace("undeploy", "--yes", "--json", publication="mine")
    assert [one["kind"] for one in json.loads(done.stdout)["sources"][shop.db.name]] == ["slot"]
    assert shop.left() == ([], ["mine"])


def test_undeploy_while_the_pipeline_runs(shop: Shop) -> None:
    shop.tailrace("deploy")
    with run_lock(shop.layout, shop.db.name):
        done = shop.tailrace("undeploy", "--yes")
    assert done.exit_code == 3
    assert "error[pipeline.running]" in done.stderr
    assert shop.left()[0] == [shop.slot]


def test_undeploy_while_somebody_reads_the_slot(shop: Shop) -> None:
    shop.tailrace("deploy")
    kept = shop.left()
    with closing(ReplicationStream(shop.db.dsn)) as reader:
        reader.start(shop.slot, 0, (shop.publication,))
        done = shop.tailrace("undeploy", "--yes")
    assert done.exit_code == 3
    assert "error[source.slot_in_use]" in done.stderr
    assert shop.left() == kept
