"""`freshness`: how long after its commit a change is in a lake table, at a steady pace of mixed changes.

Read off afterwards: each version of the table says when it was committed and how far into the log it is.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

import numpy as np

from benchmarks.lake import document
from benchmarks.meter import Meter
from benchmarks.pipeline import Running
from benchmarks.report import Measurement
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace.changelog import LogReader, head, read_slice
from tailrace.errors import SetupError

TRANSACTIONS_PER_S = 100
INSERTED, UPDATED, DELETED = 4, 14, 2
"""Rows of a transaction: 2,000 changes a second in all."""
BEFORE = 100_000
"""Rows that are there when it begins."""
CATCH_UP_S = 300.0


class Workload(threading.Thread):
    def __init__(self, table: Table, seconds: float) -> None:
        super().__init__(name="workload", daemon=True)
        self._table, self._seconds = table, seconds
        self.changes = 0

    def run(self) -> None:
        chance, began = random.Random(1), time.monotonic()
        for number in range(int(self._seconds * TRANSACTIONS_PER_S)):
            self._table.change(INSERTED, UPDATED, DELETED, chance)
            self.changes += INSERTED + UPDATED + DELETED
            time.sleep(max(0.0, began + (number + 1) / TRANSACTIONS_PER_S - time.monotonic()))


def freshness(stage: Stage, formats: Sequence[str], seconds: float, warm_up: float) -> list[Measurement]:
    return [_measure(stage, kind, seconds, warm_up) for kind in formats]


def _measure(stage: Stage, kind: str, seconds: float, warm_up: float) -> Measurement:
    """For what is committed in `seconds`, after `warm_up` seconds of the same."""
    name = f"fresh_{kind}"
    table = Table(stage.dsn, name)
    sink = document(kind, "upsert", stage.folder)
    run = Running(stage, table, name, kind.rstrip("23"), {**sink, "id": "lake"})
    try:
        run.wait_for_stream()
        table.write(BEFORE)
        _catch_up(run)
        say(f"{kind}: {TRANSACTIONS_PER_S} transactions/s of {INSERTED + UPDATED + DELETED} changes for {seconds:g} s")
        workload = Workload(table, warm_up + seconds)
        began = time.time()
        with Meter(run.roles()) as meter:
            workload.start()
            workload.join()
        _catch_up(run)
    finally:
        run.close()
        table.close()
    ages = _ages(run, int((began + warm_up) * 1e6), int((began + warm_up + seconds) * 1e6))
    cuts = quantiles(ages, n=100)
    more = {"p50_s": round(cuts[49], 2), "p99_s": round(cuts[98], 2), "max_s": round(max(ages), 2)}
    return Measurement(f"{kind} freshness", workload.changes, meter.usage(), more)


def _catch_up(run: Running) -> None:
    """Until the table has what the log has, and the log what was written."""
    log = run.layout.log(run.name)
    all_written = run.table.written + run.table.changed
    done = lambda: run.is_alive() and lake_offset(run) >= max(all_written, head(log))  # noqa: E731
    until(done, "the lake has everything", seconds=CATCH_UP_S, every=0.1)


def lake_offset(run: Running) -> int:
    """How far the sink is."""
    file = run.layout.sink(run.name, "lake") / "tables.json"
    try:
        return int(json.loads(file.read_text())["mark"])
    except FileNotFoundError:
        return 0


def _ages(run: Running, since_us: int, until_us: int) -> list[float]:
    """Seconds from commit to the table, of every change that was committed in between."""
    marks, at = _versions(run.documents)
    seqs, committed = _log(run.layout.log(run.name))
    chosen = (committed >= since_us) & (committed < until_us)
    place = np.searchsorted(marks, seqs[chosen], side="right")  # the first version whose mark is past the change
    if not chosen.any() or place.max() >= len(marks):
        raise SetupError("benchmark.rows", "changes are in no version of the table", hint="see --keep")
    return [float(age) for age in (at[place] - committed[chosen]) / 1e6]


def _versions(documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Marks and commit times, of the first version with each mark."""
    command = [sys.executable, "-m", "tailrace", "lakehouse", "snapshots", *documents, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first: dict[int, int] = {}
    for each in json.loads(told)["snapshots"]:
        if each["mark"] is not None:
            first.setdefault(int(each["mark"]), int(each["at_us"]))
    marks = sorted(first)
    return np.array(marks), np.array([first[mark] for mark in marks])


def _log(path: Path) -> tuple[np.ndarray, np.ndarray]:
    log = LogReader(path)
    found = [
        batch.select(["seq", "ts_us"]) for piece in log.slices(log.earliest, log.end, 1) for batch in read_slice(piece)
    ]
    columns = [np.concatenate([batch.column(name).to_numpy() for batch in found]) for name in ("seq", "ts_us")]
    return columns[0], columns[1]
