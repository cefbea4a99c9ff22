"""`tailrace doctor` on real servers: each thing that can be wrong is named, with its fix."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from tailrace.capture.postgres.connection import ReplicationStream
from tailrace.capture.postgres.setup import identify
from tailrace.changelog import LogWriter
from tailrace.contracts import VERDICT, Capture
from tailrace.control import Store
from tailrace.supervisor.layout import Layout
from tailrace.surfaces.cli import app
from tailrace.testing.servers import KafkaBroker, PostgresServer
from tests.capture.postgres.ddl import looked
from tests.capture.running import Capturing, Database

DOCUMENT = """\
metadata: {{name: shop}}
spec:
  source:
    type: postgres
    config:
      id: {id}
      dsn: "{dsn}"
      tables: {tables}
  sinks:
    - {{type: console, config: {{id: screen}}}}
    - {{type: file, config: {{id: files, path: "{files}"}}}}
"""

Diagnosis = dict[tuple[str, str], list[tuple[str, str, str]]]
"""(about, name) → (state, detail, fix) of each check."""


class Shop:
    """A database of its own with an `orders` table, and a document about it."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.id = f"d{uuid.uuid4().hex[:12]}"
        self.dsn = server.dsn(self.id)
        self.document = directory / "shop.yaml"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.id)))
        self.run("CREATE TABLE orders (id bigint PRIMARY KEY, v text)")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def write(self, *, dsn: str = "", tables: str = "[public.*]", more: str = "") -> Path:
        fields = {"id": self.id, "dsn": dsn or self.dsn, "tables": tables, "files": self.directory / "files"}
        self.document.write_text(DOCUMENT.format(**fields) + more)
        return self.document

    def diagnose(self, exit_code: int, **fields: str) -> Diagnosis:
        """Run the command for machines; the checks by what they are about."""
        platform = self.directory / "platform.yaml"
        platform.write_text(f"data_dir: {self.directory / 'data'}\n")
        arguments = ["doctor", str(self.write(**fields)), "--platform-config", str(platform), "--json"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == exit_code, done.output
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["ok"] == (exit_code == 0)
        found: Diagnosis = {}
        for check in answer["checks"]:
            about = check["about"].split()[0] if check["about"].startswith("source") else check["about"]
            found.setdefault((about, check["name"]), []).append((check["state"], check["detail"], check["fix"]))
        return found

    def database(self) -> Database:
        """The same, for a capture of it."""
        found = Database(self.server)
        found.name = self.id
        return found

    def role(self, grants: str = "") -> str:
        """A login of its own; returns its DSN."""
        name = f"r{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2' {grants}")
        return self.dsn.replace(f"postgres:{self.server.password}", f"{name}:hunter2")


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(postgres, tmp_path)
    yield shop
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            (shop.id,),
        )


def test_all_is_well(shop: Shop) -> None:
    found = shop.diagnose(0)
    assert {state for checks in found.values() for state, _, _ in checks} == {"ok"}
    assert [name for about, name in found if about == "source"] == [
        "connection",
        "version",
        "tls",
        "wal level",
        "replication",
        "replication slots",
        "wal senders",
        "tables",
        "select",
        "replica identity",
        "publication",
        "slot",
    ]
    assert found["source", "publication"] == [("ok", f"tailrace_{shop.id} will be created", "")]
    assert found["source", "slot"] == [("ok", f"tailrace_{shop.id} will be created", "")]
    assert found["source", "replica identity"] == [("ok", "primary key: public.orders", "")]
    assert found["sink shop/files", "directory"] == [("ok", f"{shop.directory / 'files'} will be created", "")]


def test_it_changes_nothing(shop: Shop) -> None:
    shop.diagnose(0)
    with psycopg.connect(shop.dsn) as connection:
        assert connection.execute("SELECT FROM pg_publication").fetchall() == []
        query = "SELECT FROM pg_replication_slots WHERE database = %s"
        assert connection.execute(query, (shop.id,)).fetchall() == []
    assert not (shop.directory / "files").exists()
    assert not (shop.directory / "data").exists()


def test_for_people(shop: Shop) -> None:
    done = CliRunner().invoke(app, ["doctor", str(shop.write(tables="[public.orders, public.nope]"))])
    assert done.exit_code == 3
    lines = done.stdout.splitlines()
    at = lines.index("  FAIL  tables             no table matches 'public.nope'")
    assert lines[at + 1].split(maxsplit=1)[0] == "fix:"
    assert lines[-1].endswith("1 FAIL, 0 skip")


def test_a_server_that_is_not_there(shop: Shop) -> None:
    found = shop.diagnose(3, dsn="postgresql://u:hunter2@127.0.0.1:1/shop")
    [(state, detail, fix)] = found["source", "connection"]
    assert (state, "hunter2" in detail) == ("fail", False)
    assert "host and port" in fix
    assert found["source", "slot"] == [("skipped", "there is no connection", "")]
    assert found["sink shop/screen", "ready"][0][0] == "ok"


def test_a_role_without_rights(shop: Shop) -> None:
    found = shop.diagnose(3, dsn=shop.role())
    assert found["source", "replication"][0][0] == "fail"
    assert "REPLICATION" in found["source", "replication"][0][2]
    assert found["source", "select"][0][0] == "warn"
    assert found["source", "select"][0][2].startswith("GRANT SELECT ON public.orders TO ")
    [(state, detail, fix)] = found["source", "publication"]
    assert (state, detail) == ("fail", "the role may not create a publication")
    assert fix.startswith(f'GRANT CREATE ON DATABASE "{shop.id}" TO ')


def test_a_role_that_does_not_own_the_tables(shop: Shop) -> None:
    dsn = shop.role("REPLICATION")
    role = dsn.split("//")[1].split(":")[0]
    shop.run(f"GRANT CREATE ON DATABASE {shop.id} TO {role}", f"GRANT SELECT ON orders TO {role}")
    found = shop.diagnose(3, dsn=dsn)
    assert found["source", "replication"][0][0] == "ok"
    [(state, detail, fix)] = found["source", "publication"]
    assert (state, detail) == ("fail", "the role does not own public.orders")
    assert f'CREATE PUBLICATION "tailrace_{shop.id}" FOR TABLE public.orders' in fix


def test_replica_identities(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE bare (v text)",
        "CREATE TABLE wide (v text)",
        "ALTER TABLE wide REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (v text NOT NULL UNIQUE)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_v_key",
    )
    found = shop.diagnose(0)["source", "replica identity"]
    assert {(state, detail.split(":")[-1].strip()) for state, detail, _ in found} == {
        ("ok", "public.orders"),
        ("ok", "public.indexed"),
        ("warn", "public.wide"),
        ("warn", "public.bare"),
    }
    [fix] = [fix for _, detail, fix in found if "public.bare" in detail]
    assert "ALTER TABLE public.bare REPLICA IDENTITY FULL" in fix


def test_a_publication_of_yours(shop: Shop) -> None:
    shop.run("CREATE TABLE bare (v text)", f"CREATE PUBLICATION tailrace_{shop.id} FOR TABLE orders")
    [(state, detail, fix)] = shop.diagnose(3)["source", "publication"]
    assert (state, "does not contain public.bare" in detail) == ("fail", True)
    assert "ADD TABLE public.bare" in fix
    shop.run(f"ALTER PUBLICATION tailrace_{shop.id} ADD TABLE bare")
    states = [(state, fix) for state, _, fix in shop.diagnose(0)["source", "publication"]]
    assert states == [("ok", ""), ("warn", "ALTER TABLE public.bare REPLICA IDENTITY FULL")]


@pytest.mark.parametrize("publication", ["", "mine"])
def test_a_publication_that_was_altered_while_nothing_ran(shop: Shop, publication: str) -> None:
    """Ours will be put back by the next run, which reads the table anew; yours is as you make it."""
    shop.run("CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION mine FOR TABLE orders, other")
    name = publication or f"tailrace_{shop.id}"
    layout = Layout(shop.directory / "data")
    with Capturing(shop.database(), layout.log(shop.id), store=Store(layout.store), publication=name) as run:
        looked(run)
    tables = f"[public.*]\n      publication: {name}"
    assert shop.diagnose(0, tables=tables)["source", "publication"][0][0] == "ok"
    shop.run(f"ALTER PUBLICATION {name} DROP TABLE orders")
    found = shop.diagnose(3 if publication else 0, tables=tables)["source", "publication"]
    if publication:
        assert found == [
            (
                "fail",
                "publication 'mine' does not contain public.orders (spec.source.config.publication)",
                'ALTER PUBLICATION "mine" ADD TABLE public.orders',
            )
        ]
        shop.run("ALTER PUBLICATION mine ADD TABLE orders")
        found = shop.diagnose(0, tables=tables)["source", "publication"]
    assert [state for state, *_ in found] == ["ok", "warn"]
    assert f"{name} was altered while no tap looked at public.orders" in found[1][1]
    shop.run(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    found = shop.diagnose(3 if publication else 0, tables=tables)["source", "publication"]
    assert [state for state, *_ in found] == ["ok", "fail" if publication else "warn"]


def test_a_server_that_was_restored(shop: Shop) -> None:
    """What a tap found out stands."""
    path = shop.directory / "data" / "logs" / shop.id
    with Capturing(shop.database(), path) as run:
        run.stop()
    log = LogWriter(path, shop.id)
    log.append(Capture(None, {**(log.state().resume or {}), VERDICT: "it lost the last hour"}))
    log.close()
    [(state, detail, fix)] = shop.diagnose(3)["source", "slot"]
    assert (state, "it lost the last hour" in detail) == ("fail", True)
    assert "--repair" in fix


def test_a_slot_of_another_database(shop: Shop) -> None:
    slot = f"tailrace_{shop.id}"
    with psycopg.connect(shop.server.dsn(), autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        [(state, detail, fix)] = shop.diagnose(3)["source", "slot"]
        other.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert (state, "database 'postgres'" in detail, fix) == ("fail", True, "choose another source.slot")


def test_a_slot_that_someone_reads(shop: Shop) -> None:
    shop.run(
        f"CREATE PUBLICATION tailrace_{shop.id} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('tailrace_{shop.id}', 'pgoutput')",
    )
    with closing(ReplicationStream(shop.dsn)) as reader:
        reader.start(f"tailrace_{shop.id}", 0, (f"tailrace_{shop.id}",))
        [(state, detail, _)] = shop.diagnose(0)["source", "slot"]
    assert (state, "reads it for a client" in detail) == ("warn", True)


def test_a_slot_that_is_gone_while_the_log_needs_it(shop: Shop) -> None:
    with closing(ReplicationStream(shop.dsn)) as stream:
        system = identify(stream).system
    with closing(LogWriter(shop.directory / "data" / "logs" / shop.id, shop.id)) as log:
        log.append(Capture(None, {"lsn": "0/1", "system": system, "timeline": "1", "database": shop.id}))
    [(state, detail, fix)] = shop.diagnose(3)["source", "slot"]
    assert (state, "is gone" in detail) == ("fail", True)
    assert "--repair" in fix


def test_a_slot_that_is_there(shop: Shop) -> None:
    shop.run(f"SELECT pg_create_logical_replication_slot('tailrace_{shop.id}', 'pgoutput')")
    [(state, detail, _)] = shop.diagnose(0)["source", "slot"]
    assert (state, detail.endswith("MiB of WAL")) == ("ok", True)


def test_a_server_without_logical_wal(tmp_path: Path) -> None:
    with PostgresServer(settings={"wal_level": "replica"}) as server:
        found = Shop(server, tmp_path).diagnose(3)
    assert found["source", "wal level"] == [
        (
            "fail",
            "replica; change data capture needs logical",
            "ALTER SYSTEM SET wal_level = logical, then restart the server",
        )
    ]
    assert found["source", "tables"] == [("ok", "public.orders", "")]


def test_an_older_server(postgres_server: Callable[[int], PostgresServer], tmp_path: Path) -> None:
    found = Shop(postgres_server(16), tmp_path).diagnose(0)
    assert found["source", "version"][0][1].startswith("PostgreSQL 16")


def test_kafka(shop: Shop, kafka: KafkaBroker) -> None:
    sink = '    - {{type: kafka, config: {{id: {id}, brokers: "{brokers}", topic: "{topic}"{more}}}}}\n'
    sinks = [("fresh", kafka.bootstrap, shop.id, ""), ("routed", kafka.bootstrap, "${source.table}", "")]
    sinks += [("strict", kafka.bootstrap, shop.id, ", create_topics: null"), ("away", "127.0.0.1:1", "x", "")]
    text = "".join(sink.format(id=id, brokers=brokers, topic=topic, more=more) for id, brokers, topic, more in sinks)
    found = shop.diagnose(3, more=text)
    assert found["sink shop/fresh", "brokers"] == [("ok", kafka.bootstrap, "")]
    assert found["sink shop/fresh", "topic"] == [("ok", f"{shop.id} will be created", "")]
    assert found["sink shop/routed", "topic"] == [("ok", "${source.table}, created when missing", "")]
    assert found["sink shop/strict", "topic"][0][:2] == ("fail", f"{shop.id} does not exist")
    assert found["sink shop/away", "brokers"][0][0] == "fail"
    assert found["sink shop/away", "topic"] == [("skipped", "the brokers do not answer", "")]


def test_a_directory_that_cannot_be(shop: Shop) -> None:
    (shop.directory / "files").write_text("in the way")
    found = shop.diagnose(3)
    assert found["sink shop/files", "directory"][0][:2] == (
        "fail",
        f"{shop.directory / 'files'} is not a directory",
    )


def test_a_wrong_document(shop: Shop) -> None:
    done = CliRunner().invoke(app, ["doctor", str(shop.write(tables="[]"))])
    assert done.exit_code == 2
