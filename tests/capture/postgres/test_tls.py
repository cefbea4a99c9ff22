"""TLS and passwords: every connection of ours has them. The server takes no connection without TLS, a client's
certificate and a password."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.connection import ReplicationStream
from tailrace.contracts import ChunkId, Extent
from tailrace.errors import SetupError
from tailrace.surfaces.cli import app
from tests.capture.postgres.authority import Authority, TlsServer
from tests.capture.running import Database
from tests.capture.snapshotting import Snapshotting, contents


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    with TlsServer() as running:
        running.insist()
        yield running


@pytest.fixture
def shop(server: TlsServer) -> Iterator[Database]:
    with Database(server) as db:
        db.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 25)")
        yield db


def read_replication(source: PostgresSource) -> None:
    with closing(ReplicationStream(source.conninfo())) as stream:
        stream.command("IDENTIFY_SYSTEM")


def read_catalog(source: PostgresSource) -> None:
    source.current_position()


def read_plan(source: PostgresSource) -> None:
    source.plan_chunks("public", "t", None, 10, 10)


def read_rows(source: PostgresSource, folder: Path) -> None:
    source.read_chunk(ChunkId("run", "public", "t", 0), Extent(), folder)


def test_rows_from_before_and_changes_arrive(shop: Database, server: TlsServer, tmp_path: Path) -> None:
    with Snapshotting(shop, tmp_path, **server.options(shop.name)) as running:
        sessions = shop.rows(
            "SELECT ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_replication USING (pid) WHERE application_name ~ %s",
            f"^tailrace:{shop.name}:",
        )
        assert sessions == [(True, "/CN=client")]
        running.begin()
        shop.run("INSERT INTO t VALUES (26)")
        rows = running.finish()
    assert {row["op"] for row in rows} >= {"c", "r"}
    assert sorted(row["id"] for row in contents(rows).values()) == list(range(1, 27))


ROADS = [read_replication, read_catalog, read_plan, read_rows]


def go(road: Callable[..., None], source: PostgresSource, folder: Path) -> None:
    road(source, folder) if road is read_rows else road(source)


@pytest.mark.parametrize("road", ROADS)
def test_every_connection(road: Callable[..., None], shop: Database, server: TlsServer, tmp_path: Path) -> None:
    """With everything it gets in; without any part of it, it does not."""
    options = server.options(shop.name)
    go(road, shop.source(**options), tmp_path)
    stranger = Authority(tmp_path, "stranger").root
    wrong = {
        "certificate verify failed": {"tls": options["tls"] | {"root_cert": stranger}},
        "does not match host name": {
            "dsn": options["dsn"].replace("127.0.0.1", "localhost") + "?hostaddr=127.0.0.1",
        },
        "does not exist": {"tls": options["tls"] | {"root_cert": tmp_path / "none.crt"}},
        "valid client certificate": {"tls": {"mode": "verify-full", "root_cert": options["tls"]["root_cert"]}},
    }
    for text, changed in wrong.items():
        with pytest.raises(SetupError, match=text) as caught:
            go(road, shop.source(**options | changed), tmp_path)
        assert (caught.value.code, "root_cert" in caught.value.hint) == ("source.tls", True)
    for changed in ({"password": "hush-hush"}, {"tls": {"mode": "disable"}}):
        with pytest.raises(SetupError) as caught:
            go(road, shop.source(**options | changed), tmp_path)
        assert caught.value.code == "source.auth"
        assert "hush-hush" not in str(caught.value)


def doctor(folder: Path, options: dict[str, Any]) -> tuple[int, dict[str, dict[str, str]]]:
    document = folder / "shop.yaml"
    tls = {name: str(value) for name, value in options["tls"].items()}
    config = {"id": "shop", "tables": ["public.*"], **options, "tls": tls}
    sinks = [{"type": "console", "config": {"id": "screen"}}]
    spec = {"source": {"type": "postgres", "config": config}, "sinks": sinks}
    document.write_text(json.dumps({"metadata": {"name": "shop"}, "spec": spec}))
    platform = folder / "platform.yaml"
    platform.write_text(f"data_dir: {folder / 'data'}\n")
    done = CliRunner().invoke(app, ["doctor", str(document), "--platform-config", str(platform), "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return done.exit_code, checks


def test_the_doctor(shop: Database, server: TlsServer, tmp_path: Path) -> None:
    options = server.options(shop.name)
    code, checks = doctor(tmp_path, options)
    assert (code, checks["tls"]["state"], checks["replication"]["state"]) == (0, "ok", "ok")
    assert checks["tls"]["detail"].startswith("TLS")
    stranger = Authority(tmp_path, "stranger").root
    code, checks = doctor(tmp_path, options | {"tls": options["tls"] | {"root_cert": stranger}})
    assert (code, checks["connection"]["state"]) == (3, "fail")
    assert "certificate verify failed" in checks["connection"]["detail"]
    assert "root_cert" in checks["connection"]["fix"]
