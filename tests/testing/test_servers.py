"""The servers the other tests stand on: they start, keep data through a crash, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.errors import SetupError
from tailrace.testing.servers import KafkaBroker, PostgresServer, fetch_jars
from tailrace.testing.servers.postgres_binaries import MAJORS, Installation, installation
from tailrace.testing.servers.process import Account, reachable, unprivileged

QUIET = {"log_level": "0"}


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """One that these tests may kill, unlike the shared one."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.mark.parametrize("major", MAJORS)
def test_postgres_is_ready_for_logical_replication(
    postgres_server: Callable[[int], PostgresServer], major: int
) -> None:
    server = postgres_server(major)
    with psycopg.connect(server.dsn(application_name="a b")) as connection:
        assert connection.info.server_version // 10_000 == major
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.execute("SHOW application_name").fetchone() == ("a b",)


@pytest.mark.parametrize("major", MAJORS)
def test_the_newest_client_programs_speak_to_every_major(
    postgres_server: Callable[[int], PostgresServer], major: int
) -> None:
    server = postgres_server(major)
    slot = ["--slot=client_programs", "--plugin=pgoutput"]
    receive = [str(server.bin("pg_recvlogical")), "-d", server.dsn(), *slot]
    subprocess.run([*receive, "--create-slot"], check=True)
    subprocess.run([*receive, "--drop-slot"], check=True)
    query = [str(server.bin("psql")), server.dsn(), "-Atc", "SELECT 6 * 7"]
    assert subprocess.run(query, check=True, capture_output=True, text=True).stdout == "42\n"


def test_a_wrong_password_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn().replace(postgres.password, "wrong"))


def test_postgres_keeps_committed_rows_and_port_through_a_kill(own_postgres: PostgresServer) -> None:
    before = own_postgres.dsn()
    with psycopg.connect(before, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
        family = [psutil.Process(own_postgres.pid), *psutil.Process(own_postgres.pid).children()]
        own_postgres.kill()
    assert len(family) > 1
    assert not [process for process in family if process.is_running() and process.status() != "zombie"]
    own_postgres.start()
    assert own_postgres.dsn() == before
    with psycopg.connect(before) as connection:
        assert connection.execute("SELECT count(*), sum(n) FROM kept").fetchone() == (1000, 500500)


def test_changed_settings_hold_from_the_next_start(own_postgres: PostgresServer) -> None:
    own_postgres.settings["search_path"] = 'it\'s, "odd"'
    own_postgres.restart()
    with psycopg.connect(own_postgres.dsn()) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ('it\'s, "odd"',)


def test_a_setting_postgres_refuses_is_reported_in_its_own_words() -> None:
    with pytest.raises(SetupError, match="shared_bufers") as caught:
        PostgresServer(settings={"shared_bufers": "1MB"}).start()
    assert caught.value.code == "environment.server_failed"


def test_an_unknown_major_is_refused() -> None:
    with pytest.raises(SetupError, match="no PostgreSQL 9") as caught:
        PostgresServer(9).start()
    assert caught.value.hint == "use one of 15, 16, 18"


def test_closing_removes_what_was_temporary() -> None:
    with PostgresServer() as server:
        pid, directory = server.pid, server.directory
        assert directory.exists()
    assert not psutil.pid_exists(pid)
    assert not directory.exists()
    assert not server.running


@pytest.mark.parametrize("kind", ["PostgresServer", pytest.param("KafkaBroker", marks=pytest.mark.slow)])
def test_a_server_dies_with_the_process_that_started_it(kind: str, tmp_path: Path) -> None:
    script = (
        f"import sys; from tailrace.testing.servers import {kind}\n"
        f"server = {kind}().start(); print(server.pid, server.directory, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        server = psutil.Process(int(pid))
        os.kill(owner.pid, signal.SIGKILL)
    psutil.wait_procs([server], timeout=20)
    assert not server.is_running() or server.status() == "zombie"
    subprocess.run(["rm", "-rf", directory], check=True)


def test_one_can_be_borrowed_for_a_while(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace.testing.servers", "postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as owner:
        assert owner.stdout is not None
        found = [owner.stdout.readline().strip() for _ in range(2)]
        count = 'psql "$SHOP_DSN" -Atc "SHOW wal_level"'
        asked = subprocess.run(["bash", "-ec", "\n".join([*found, count])], capture_output=True, text=True, check=True)
        owner.send_signal(signal.SIGINT)
    assert (asked.stdout, owner.returncode) == ("logical\n", 0)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(found[1].removeprefix("export SHOP_DSN="))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to fall back to")
def test_for_root_the_programs_are_copied_to_where_nobody_may_reach(tmp_path: Path) -> None:
    account = unprivileged()
    assert account is not None
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    assert not reachable(private, account)
    found = installation(18)
    hidden = Installation(private, found.parts, found.bin)
    for part in (*found.parts, found.bin):
        (private / part).mkdir(parents=True)
    copied = hidden.within_reach_of(account, tmp_path / "copies")
    assert copied.root == tmp_path / "copies"
    assert all((copied.root / part).stat().st_uid == account.uid for part in found.parts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_for_root_a_directory_out_of_reach_is_refused(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(SetupError) as caught:
        PostgresServer(directory=private / "server").start()
    assert caught.value.code == "environment.directory_unreachable"


def test_reach_is_decided_by_every_folder_on_the_way(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "open").mkdir(mode=0o755)
    stranger = Account(uid=54321, gid=54321)
    assert not reachable(tmp_path / "closed" / "open", stranger)


@pytest.mark.slow
def test_kafka_keeps_acknowledged_messages_and_port_through_a_kill(own_kafka: KafkaBroker) -> None:
    before = own_kafka.bootstrap
    topic = _new_topic(own_kafka, "kept")
    producer = Producer({"bootstrap.servers": before, **QUIET})
    for number in range(100):
        producer.produce(topic, str(number), key=str(number))
    assert producer.flush(30) == 0
    own_kafka.kill()
    own_kafka.start()
    assert own_kafka.bootstrap == before
    assert sorted(int(message.value() or b"") for message in _read(own_kafka, topic, 100)) == list(range(100))


@pytest.mark.slow
def test_kafka_has_transactions_and_no_accidental_topics(own_kafka: KafkaBroker) -> None:
    topic = _new_topic(own_kafka, "transactions")
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap, "transactional.id": "test", **QUIET})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, end.__name__)
        end(30)
    assert [message.value() for message in _read(own_kafka, topic, 1)] == [b"commit_transaction"]
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, **QUIET})
    assert admin.list_topics("never-made", timeout=10).topics["never-made"].error is not None


@pytest.mark.slow
def test_jars_are_fetched_once_and_whole() -> None:
    folder = fetch_jars("org.apache.kafka", "kafka_2.13", "4.3.0")
    names = {path.name for path in folder.iterdir()}
    assert {"kafka_2.13-4.3.0.jar", "kafka-clients-4.3.0.jar", "scala-library-2.13.18.jar"} <= names
    assert fetch_jars("org.apache.kafka", "kafka_2.13", "4.3.0") == folder


@pytest.mark.slow
def test_jars_that_are_present_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path))

    def fetched(*present: str) -> set[str]:
        return {path.name for path in fetch_jars("org.slf4j", "slf4j-simple", "2.0.17", present=present).iterdir()}

    assert fetched("slf4j-api", "unheard-of") == {"slf4j-simple-2.0.17.jar"}
    assert fetched() == {"slf4j-simple-2.0.17.jar", "slf4j-api-2.0.17.jar"}


def _new_topic(broker: KafkaBroker, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    admin.create_topics([NewTopic(name, -1, 1)])[name].result(30)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4
    return name


def _read(broker: KafkaBroker, topic: str, count: int) -> list[Message]:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        **QUIET,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        return list(consumer.consume(count, timeout=60))
    finally:
        consumer.close()
