"""The demo's directory: whose it is, what is in it, and the documents a user can read there.

pipeline.yaml, platform.yaml    what runs, as a user would write it
files/                          where the changes arrive
lake/                           the tables as they are, in Delta
data/                           change log and checkpoints
postgres/                       the embedded database
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.java import QUICK
from tailrace.spec import Pipeline, Platform, load_pipelines, load_platform

MARKER = ".tailrace-demo"
"""Without this file a directory is not ours, and nothing in it is touched."""

PIPELINE = """\
# The pipeline of `tailrace demo`, as you would write it yourself. Every committed change of three tables
# becomes a line in a file, and Delta tables follow the shop's.
apiVersion: tailrace/v1
kind: Pipeline
metadata:
  name: demo
spec:
  source:
    type: postgres
    config:
      id: shop
      dsn: {dsn}
      tables: [public.customers, public.orders, public.order_items]
  sinks:
    - type: file
      config:
        id: files
        path: {files}
        roll: {{every: 1s}}
    - type: delta                 # the tables as they are, in a lake
      config:
        id: lake
        path: {lake}
        write_mode: upsert
        commit_interval: 5s
"""

PLATFORM = """\
# Where it runs. Everything here is optional.
apiVersion: tailrace/v1
kind: Platform
data_dir: {data}
spark:
  driver_memory: 1g
  conf: {{spark.driver.extraJavaOptions: "{quick}"}}  # a quick start rather than top speed
"""


@dataclass(frozen=True)
class DemoFolder:
    """The demo's directory."""

    root: Path

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def postgres(self) -> Path:
        """May be a link to a directory that the database's user can enter."""
        return self.root / "postgres"

    def documents(self, dsn: str) -> tuple[Pipeline, Platform]:
        """Write the documents, and load them as `tailrace run` would."""
        pipeline, platform = self.root / "pipeline.yaml", self.root / "platform.yaml"
        pipeline.touch(mode=0o600)  # it holds the database's password
        pipeline.write_text(
            PIPELINE.format(dsn=_quoted(dsn), files=_quoted(str(self.files)), lake=_quoted(str(self.lake)))
        )
        platform.write_text(PLATFORM.format(data=_quoted(str(self.root / "data")), quick=QUICK))
        [loaded] = load_pipelines([pipeline])
        return loaded, load_platform(platform)


@contextmanager
def claim(root: Path, *, keep: bool) -> Iterator[DemoFolder]:
    """The directory, ours until the end; emptied first unless `keep`."""
    root = root.absolute()
    if root.exists() and not (root / MARKER).exists() and any(root.iterdir()):
        hint = "run the demo in another directory, or move this one away"
        raise SetupError("demo.directory_taken", f"{root} is not a demo's directory", hint=hint)
    root.mkdir(parents=True, exist_ok=True)
    with open(root / MARKER, "a") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop the other demo, or run this one in another directory"
            raise SetupError("demo.running", f"a demo runs in {root}", hint=hint) from None
        if not keep:
            _empty(root)
        yield DemoFolder(root)


def _empty(root: Path) -> None:
    for entry in root.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_symlink():
            shutil.rmtree(entry.resolve(), ignore_errors=True)
            entry.unlink()
        elif entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _quoted(text: str) -> str:
    """A YAML string in which `$` stands for itself."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)
