"""The Spark session every query runs in: quiet, quick for small batches, and unable to reorder a key.

A user's settings win over ours, except where delivery would break: then they are refused, never ignored.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, SparkError
from tailrace.machine import signals
from tailrace.machine.cache import script
from tailrace.machine.durable import make_directory, private
from tailrace.machine.java import java_home, with_one_collector
from tailrace.spark.daemon import DRIVER_PID, importable

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PATIENT = " ".join(
    (
        # Few cores and short-lived garbage: the smallest collector has the least to do beside the work.
        "-XX:+UseSerialGC",
        # Ten times as many calls as by default before the second compiler takes something up: what handles rows has
        # them soon in a flood, and what plans batches, which is far more code, seldom pays back what it costs.
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
    )
)
"""How the JVM compiles and collects. A program that runs for days may take its time."""

DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "tailrace",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.liveUpdate.period": "-1",
    JAVA_OPTIONS: PATIENT,
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    # Small batches: planning adaptively costs more than the batch.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.noDataProgressEventInterval": "60s",
    # Whatever Spark remembers of finished work grows the heap of a query that never ends.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    # Every batch writes its plan down, for a page that is off; this is the shortest form.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}

LOCAL_FILES: Mapping[str, str] = {
    # Hadoop's default for `file:` starts a `chmod` process for every file it creates.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

LOCALHOST = "127.0.0.1"
LOOPBACK: Mapping[str, str] = {"spark.driver.host": LOCALHOST, "spark.driver.bindAddress": LOCALHOST}
PAGE_ADDRESS = "SPARK_LOCAL_IP"
"""Environment: where Spark's page listens. Spark has no setting for it; without this it listens on all addresses."""
ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
"""Either keeps what driver and executors say to each other from whoever listens."""

FIXED: Mapping[str, str] = {
    "spark.speculation": "false",  # a second copy of a task delivers behind the first
    "spark.task.maxFailures": "1",  # so does a retry; the supervisor retries whole batches
    "spark.python.daemon.module": "tailrace.spark.daemon",  # its workers die with the driver
    "spark.sql.variable.substitute": "false",  # `${…}` in a name or a value is a text like any other
}

_WITHOUT_COPIES = """\
#!/bin/sh
# Runs {python} without the copies of PySpark that Spark names first: they are not compiled, so that each of the
# processes that Spark starts would compile them, which takes a second.
set -f
rest= IFS=:
for path in $PYTHONPATH; do
    case "$path" in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) rest="$rest${{rest:+:}}$path" ;;
    esac
done
unset IFS
export PYTHONPATH="$rest"
exec {python} "$@"
"""
_PRIVATE = re.compile(r"^spark\.(hadoop|sql)\.|secret|password|token|access[.]?key", re.IGNORECASE)
"""Settings with secrets (Spark's own idea of them), and those of storages and catalogs, in which they may stand."""
MAX_SOCKET_FOLDER = 64
"""A socket's path has 107 bytes at most, and its name takes 42."""
MAX_NESTING = 10_000
MAX_NUMBER_LENGTH = 1 << 20
MAX_STRING_LENGTH = (1 << 31) - 1


def open_session(
    log_file: Path,
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    driver_memory: str | None = None,
) -> SparkSession:
    """Start the JVM of this process and connect to `master`. Once per process; `session.stop()` ends it.

    What Spark, its JVM and its Python workers print goes to `log_file`. Refuses settings under which a key's
    order could break (`config.speculation`, `config.task_retries`, `config.daemon`), the one under which Spark takes
    `${…}` in a name or a value for a variable (`config.substitution`), and a cluster that others could listen to
    (`config.open_cluster`, `config.open_page`).
    """
    settings = session_settings(master, conf or {}, driver_memory)
    if not _is_local(master):
        _refuse_open_page(settings, os.environ)
    if _is_local(master):
        settings = {**_unix_sockets(), **settings}
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # they print, with traces, what is raised anyway
    _prepare_environment(local=_is_local(master))
    options = with_one_collector(settings[JAVA_OPTIONS])
    settings[JAVA_OPTIONS] = options + _archived(options)
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    make_directory(log_file.parent)
    try:
        with _own_interrupt():
            context = _start(spark_conf, log_file)
    except PySparkRuntimeError as error:
        hint = f"Read {log_file}; is JAVA_HOME a Java 17 or 21, and is there memory for its heap?"
        raise SparkError("spark.not_started", "Spark's JVM ended while it started", hint=hint) from error
    return SparkSession.builder.config(conf=context.getConf()).getOrCreate()


def session_settings(master: str, conf: Mapping[str, str], driver_memory: str | None = None) -> dict[str, str]:
    """Every setting of the session. Raises `ConfigError` where `conf` or `master` contradict what is
    fixed."""
    _refuse(master, conf)
    settings = {**DEFAULTS, **LOCAL_FILES}
    if driver_memory is not None:
        settings["spark.driver.memory"] = driver_memory
    if _is_local(master):
        settings |= LOOPBACK
    return settings | {"spark.master": master} | dict(conf) | dict(FIXED)


def _refuse_open_page(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """On a cluster `PAGE_ADDRESS` is also the driver's address for executors: only its owner knows which."""
    if settings["spark.ui.enabled"].lower() == "true" and not environment.get(PAGE_ADDRESS):
        raise ConfigError(
            "config.open_page",
            "Spark's page would listen on every address of this machine",
            hint=f"set {PAGE_ADDRESS} in the environment to the address of this machine that executors use and that "
            "the page may listen on, or leave ports.spark_ui out",
            where="ports.spark_ui",
        )


def _refuse_open_cluster(conf: Mapping[str, str]) -> None:
    """Tasks carry the passwords of sources and sinks to executors."""
    protected = any(conf.get(name, "false").lower() == "true" for name in ENCRYPTION)
    if conf.get("spark.authenticate", "false").lower() == "true" and protected:
        return
    raise ConfigError(
        "config.open_cluster",
        "on a cluster, passwords of sources and sinks travel to executors: only with authentication and encryption",
        hint='add spark.authenticate: "true" and spark.network.crypto.enabled: "true" (or spark.ssl.rpc.enabled), and '
        "where the cluster is standalone spark.authenticate.secret: ${SPARK_SECRET}, as its master and workers have it",
        where="spark.conf",
    )


_ORDER = ", which breaks the order of a key"


def _refuse(master: str, conf: Mapping[str, str]) -> None:
    if conf.get("spark.speculation", "false").lower() != "false":
        raise _conflict("config.speculation", "spark.speculation", "a second copy of a task can deliver late" + _ORDER)
    if conf.get("spark.task.maxFailures", "1") != "1" or re.fullmatch(r"local\[[^,]+,(?!\s*1\]).*", master):
        raise _conflict("config.task_retries", "spark.task.maxFailures", "a retried task can deliver late" + _ORDER)
    daemon = FIXED["spark.python.daemon.module"]
    if conf.get("spark.python.daemon.module", daemon) != daemon:
        raise _conflict("config.daemon", "spark.python.daemon.module", "workers must die with their driver" + _ORDER)
    if conf.get("spark.python.use.daemon", "true").lower() != "true":
        raise _conflict("config.daemon", "spark.python.use.daemon", "workers must die with their driver" + _ORDER)
    if conf.get("spark.sql.variable.substitute", "false").lower() != "false":
        raise _conflict("config.substitution", "spark.sql.variable.substitute", "it would look into names and values")
    if not _is_local(master):
        _refuse_open_cluster(conf)


def _conflict(code: str, setting: str, reason: str) -> ConfigError:
    return ConfigError(
        code,
        f"{setting} cannot be changed: {reason}",
        hint=f"Remove {setting} from the platform's Spark settings",
        where="spark.conf",
    )


def _unix_sockets() -> dict[str, str]:
    """Between the JVM and its workers, in a folder that only this user can enter: small writes over TCP wait for each
    other's acknowledgements, 40 ms in every task."""
    folder = tempfile.mkdtemp(prefix="tailrace-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if len(folder.encode()) > MAX_SOCKET_FOLDER:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


def class_archive() -> Path:
    """Where `tailrace.spark.warm` keeps the classes of this Spark, as this Java has them in memory."""
    versions = f"{java_home()} {pyspark.__file__} {pyspark.__version__}"
    return Path(sys.prefix, "share", "tailrace", f"spark-{hashlib.sha256(versions.encode()).hexdigest()[:12]}.jsa")


def _archived(options: str) -> str:
    """What lets the JVM take its classes from there. It does without them where they do not suit its `options`."""
    archive = class_archive()
    return f' "-XX:SharedArchiveFile={archive}"' if archive.exists() and "Archive" not in options else ""


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _prepare_environment(*, local: bool) -> None:
    """What the JVM and, through it, the workers inherit. `spark.pyspark.python` does not reach every
    worker."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = _python() if local else sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        os.environ.setdefault(PAGE_ADDRESS, LOCALHOST)
        os.environ[DRIVER_PID] = str(os.getpid())
    else:
        os.environ.pop(DRIVER_PID, None)


def _python() -> str:
    """This Python for all that Spark starts with it. Where PySpark is installed and the cache can hold a program,
    Spark's copies of PySpark are left out."""
    installed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    if not all(importable(name, installed) for name in ("pyspark", "py4j")):
        return sys.executable
    try:
        file = script("python", "python", _WITHOUT_COPIES.format(python=shlex.quote(sys.executable)))
    except OSError:
        return sys.executable
    return str(file) if os.access(file, os.X_OK) else sys.executable


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Spark would answer Ctrl-C by cancelling the jobs that run; a run drains instead."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


class _Launch(dict[str, Any]):
    """How the JVM's process is started. PySpark adds to it a function that runs in that process before the program, to
    make it deaf to Ctrl-C; it has to be deaf to all that ends a run."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, signals.ignore if name == "preexec_fn" else value)


def _public(conf: SparkConf) -> SparkConf:
    """What the JVM is started with: every user of the machine can read a process's arguments. The rest follows through
    the gateway, which is private."""
    rest = [(name, text) for name, text in conf.getAll() if not _PRIVATE.search(name)]
    return SparkConf(loadDefaults=False).setAll(rest)


def _start(conf: SparkConf, log_file: Path) -> SparkContext:
    with open(log_file, "ab", opener=private) as log:
        gateway = launch_gateway(_public(conf), _Launch(stdout=log, stderr=log))  # type: ignore[no-untyped-call]
    limits = gateway.jvm.com.fasterxml.jackson.core.StreamReadConstraints
    # Row images are JSON text; a large value must not become NULL because of a parser's default limit.
    wide = limits.builder().maxStringLength(MAX_STRING_LENGTH).maxNestingDepth(MAX_NESTING)
    limits.overrideDefaultStreamReadConstraints(wide.maxNumberLength(MAX_NUMBER_LENGTH).build())
    return SparkContext(conf=conf, gateway=gateway)
