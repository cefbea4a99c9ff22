"""The session's settings: which are ours, which are the user's, which are refused."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.lake.target import lake_session
from tailrace.spark import session
from tailrace.spark.session import FIXED, open_session, session_settings


@pytest.mark.parametrize(
    ("conf", "code"),
    [
        ({"spark.speculation": "true"}, "config.speculation"),
        ({"spark.task.maxFailures": "4"}, "config.task_retries"),
        ({"spark.python.daemon.module": "pyspark.daemon"}, "config.daemon"),
        ({"spark.python.use.daemon": "false"}, "config.daemon"),
        ({"spark.sql.variable.substitute": "true"}, "config.substitution"),
    ],
)
def test_what_could_break_delivery_is_refused(conf: dict[str, str], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        session_settings("local[*]", conf)
    assert refused.value.code == code
    assert next(iter(conf)) in refused.value.hint


PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


def test_a_master_that_retries_tasks_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        session_settings("local[2,4]", {})
    assert refused.value.code == "config.task_retries"
    assert session_settings("local[2,1]", {})["spark.master"] == "local[2,1]"


def test_the_users_settings_win() -> None:
    settings = session_settings("local[2]", {"spark.ui.enabled": "true"}, driver_memory="3g")
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.memory"] == "3g"
    assert settings.items() >= FIXED.items()


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[1,1,1024]"])
def test_a_cluster_must_be_protected(master: str) -> None:
    for name in PROTECTED:
        with pytest.raises(ConfigError) as refused:
            session_settings(master, {each: text for each, text in PROTECTED.items() if each != name})
        assert refused.value.code == "config.open_cluster"
        assert name in refused.value.hint
    assert session_settings(master, PROTECTED).items() >= PROTECTED.items()
    assert session_settings(master, {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"})
    assert session_settings("local[2]", {})


def test_on_a_cluster_somebody_says_where_the_page_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with pytest.raises(ConfigError) as refused:
        open_session(tmp_path / "log", master="yarn", conf={**PROTECTED, "spark.ui.enabled": "true"})
    assert refused.value.code == "config.open_page"
    assert "SPARK_LOCAL_IP" in refused.value.hint


def test_only_a_local_driver_hides_on_the_loopback() -> None:
    assert "spark.driver.host" not in session_settings("spark://host:7077", PROTECTED)
    assert session_settings("local", {})["spark.driver.host"] == "127.0.0.1"


def test_workers_are_reached_through_a_folder_of_this_user(spark: SparkSession) -> None:
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert spark.range(1).mapInArrow(lambda batches: batches, "id bigint").count() == 1
    assert any(path.is_socket() for path in folder.iterdir())


def test_large_values_are_not_lost_to_a_parsers_limit(spark: SparkSession) -> None:
    size = 25_000_000  # the parser's own limit is 20,000,000
    image = f"concat('{{\"id\":1,\"text\":\"', repeat('x', {size}), '\"}}')"
    row = spark.sql(f"select length(get_json_object({image}, '$.text')) as size").collect()[0]
    assert row["size"] == size


def test_no_session_takes_a_text_for_a_variable(spark: SparkSession) -> None:
    for each in (spark, spark.newSession(), lake_session(spark, {})):
        assert each.sql("select '${env:PATH}${zz}' as t").collect()[0]["t"] == "${env:PATH}${zz}"
        assert each.range(1).selectExpr("'${env:PATH}' as t").collect()[0]["t"] == "${env:PATH}"


def test_times_are_utc(spark: SparkSession) -> None:
    assert spark.sql("select cast(timestamp_micros(0) as string) as t").collect()[0]["t"] == "1970-01-01 00:00:00"


def test_ctrl_c_stays_with_whoever_runs_the_session(spark: SparkSession) -> None:
    """Spark's own answer to it cancels the jobs that run."""
    assert getattr(signal.getsignal(signal.SIGINT), "__module__", None) != "pyspark.core.context"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture(scope="module", params=[(), (signal.SIGINT, signal.SIGHUP)], ids=["terminal", "nohup"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a driver of its own tells, and the signals that were ignored where it was started."""
    ignored: tuple[signal.Signals, ...] = request.param

    def started_so() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    folder = tmp_path_factory.mktemp("driver")
    command = [sys.executable, str(Path(__file__).with_name("signalled_driver.py")), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, preexec_fn=started_so, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    return {"ignored": ignored, **json.loads(done.stdout)}


def test_what_ends_a_run_is_heard_by_its_driver_alone(driver: dict[str, Any]) -> None:
    """A SIGTERM to all processes of a run at once, a Ctrl-C, a terminal that closes: the task that runs is finished."""
    assert driver["rows"] == 7
    assert driver["processes"] >= 4, "the JVM, the daemon, its sentinel, a worker"
    assert driver["gone"] == []
    assert driver["heard"] == [signal.SIGTERM if driver["ignored"] else signal.SIGINT], "and once"


def test_nobody_else_can_ask_it(driver: dict[str, Any]) -> None:
    """Spark's page is on, and nothing listens on an address that other machines reach."""
    assert driver["page"] == 200
    assert set(driver["listens"]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_no_secret_is_among_its_arguments(driver: dict[str, Any]) -> None:
    """Every user of the machine can read those."""
    assert driver["secret"] == "known to Spark"
    assert "known to Spark" not in str(driver["arguments"])


def test_what_spark_starts_uses_the_installed_pyspark() -> None:
    """Spark's own copies are dropped from the path, and nothing of a user's."""
    own = ["/opt/spark/python/lib/pyspark.zip", "/opt/py4j-0.10.9.9-src.zip", "/opt/spark-core_2.13-4.1.4.jar"]
    users = ["/some where/users.zip", "/elsewhere/*", "/users.jar"]
    look = [session._python(), "-c", "import sys; print(sys.path)"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*own, *users])}
    found = subprocess.run(look, env=environment, capture_output=True, text=True, check=True).stdout
    assert [path for path in ast.literal_eval(found) if path in own + users] == users


def test_spark_starts_python_itself_where_there_is_no_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    assert session._python() != sys.executable
    monkeypatch.setenv("TAILRACE_CACHE", os.devnull)  # nothing can be written there
    assert session._python() == sys.executable
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sysconfig, "get_path", lambda kind: str(tmp_path))  # PySpark is not installed
    assert session._python() == sys.executable


def test_classes_come_from_the_archive_where_there_is_one(spark: SparkSession) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    mapped = Path(f"/proc/{jvm}/maps").read_text()
    assert (str(session.class_archive()) in mapped) == session.class_archive().exists()


def test_an_archive_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(session, "class_archive", lambda: archive)
    assert session._archived("-Xmx1g") == ""
    archive.touch()
    assert session._archived("-Xmx1g") == f' "-XX:SharedArchiveFile={archive}"'
    assert session._archived("-XX:SharedArchiveFile=/a/users.jsa") == ""
