"""Libraries of the JVM that sinks need, fetched once and kept in the cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.contracts import EXTENSIONS, RecordSink, Sink
from tailrace.machine.maven import fetch_jars
from tailrace.spark.session import open_session
from tailrace.spec.platform import SparkSettings

MOST_WAITING = 3
"""Sinks that can wait for their targets at the same time without keeping others from working."""
_LOCAL = re.compile(r"local\[(\*|\d+)\]")
_VERSIONED = re.compile(r"(.+?)-\d[\w.\-]*\.jar")


def open_for(
    sinks: Iterable[Sink],
    settings: SparkSettings,
    log_file: Path,
    conf: Mapping[str, str] | None = None,
    *,
    waiting: int | None = None,
) -> SparkSession:
    """A session that runs `sinks`, set up as the platform document says. `conf` gives way to the document's. `waiting`:
    how many sinks may wait for their targets at the same time; absent: as many as `sinks` have it."""
    sinks = tuple(sinks)
    if waiting is None:
        waiting = sum(isinstance(sink, RecordSink) for sink in sinks) if len(sinks) > 1 else 0
    return open_session(
        log_file,
        master=with_slots(settings.master, waiting),
        conf={**settings_for(sinks), **sharing(settings.master), **(conf or {}), **settings.conf},
        driver_memory=settings.driver_memory,
    )


def with_slots(master: str, waiting: int) -> str:
    """The master, with room for more tasks than there are cores where several sinks may be `waiting`: tasks of one that
    waits for its target leave the cores to the others."""
    cores = _cores(master)
    return master if cores is None else f"local[{cores * (1 + min(waiting, MOST_WAITING))}]"


def sharing(master: str) -> dict[str, str]:
    """Queries take turns, task by task, and each uses as many tasks as there are cores."""
    cores = _cores(master)
    parallelism = {} if cores is None else {"spark.default.parallelism": str(cores)}
    return {"spark.scheduler.mode": "FAIR", **parallelism}


def _cores(master: str) -> int | None:
    """Of a local master; None of others."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1])


def settings_for(sinks: Iterable[Sink]) -> dict[str, str]:
    """The Spark settings that let the session run `sinks`. Fetches what is missing, which can take a minute."""
    found = list(sinks)
    jars = {jar for sink in found for jar in sink.jars()}
    if not jars:
        return {}
    extensions = dict.fromkeys(names for sink in found if (names := sink.spark_settings().get(EXTENSIONS)))
    settings = {name: text for sink in found for name, text in sink.spark_settings().items()}
    ours = _names(Path(find_spec("pyspark").origin).parent / "jars")  # type: ignore[union-attr, arg-type]
    files: dict[str, Path] = {}
    for jar in sorted(jars, key=lambda each: each.artifact):
        present = ours if jar.transitive else ()
        folder = fetch_jars(jar.group, jar.artifact, jar.version, transitive=jar.transitive, present=present)
        files |= {name: file for name, file in _names(folder).items() if name not in ours}
    libraries = ",".join(str(file) for file in files.values())
    return settings | {"spark.jars": libraries, EXTENSIONS: ",".join(extensions)}


def _names(folder: Path) -> dict[str, Path]:
    """Jars by their names without versions: what Spark has itself is not brought again in another version."""
    return {found[1]: file for file in sorted(folder.iterdir()) if (found := _VERSIONED.fullmatch(file.name))}
