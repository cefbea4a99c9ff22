"""A pipeline over a log that is made by hand, to look into."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailrace.control import Store
from tailrace.spec import Pipeline, load_pipelines
from tailrace.supervisor.explore import Bounds, Explorer, Filter, Page
from tailrace.supervisor.layout import Layout
from tailrace.testing.feed import Feed, schema_of

ORDERS = schema_of(1, "orders", {"id": "bigint", "email": "text", "total": "numeric(12,2)", "status": "text"})
NOTES = schema_of(2, "notes", {"id": "bigint", "lang": "text", "text": "text"}, ("id", "lang"))
SCREEN: dict[str, Any] = {"type": "console", "config": {"id": "screen"}}
PLAIN: dict[str, Any] = {"type": "console", "config": {"id": "plain"}}
MASK = {"type": "transform", "mask": [{"columns": ["email"]}]}
HASH_KEY = {"type": "transform", "id": "hashed", "hash": [{"columns": ["id"], "salt": "pepper"}]}
ONLY_PAID = {"type": "filter", "id": "paid", "fields": [{"path": "status", "op": "eq", "value": "paid"}]}


@dataclass
class Place:
    """A data directory with one log, and a pipeline's document."""

    folder: Path

    @property
    def layout(self) -> Layout:
        return Layout(self.folder / "data")

    @property
    def feed(self) -> Feed:
        return Feed(self.layout.log("shop"))

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    def store(self) -> Store:
        return Store(self.layout.store)

    def pipeline(self, *sinks: dict[str, Any], processors: Any = ()) -> Pipeline:
        """Written down as a document and read again."""
        source = {"id": "shop", "dsn": "postgresql://u@localhost/shop", "tables": ["public.*"]}
        spec = {"source": {"type": "postgres", "config": source}, "sinks": list(sinks or (SCREEN,))}
        document = {"metadata": {"name": "shop"}, "spec": {**spec, "processors": list(processors)}}
        self.file.write_text(yaml.safe_dump(document))
        return load_pipelines([self.file])[0]

    def explorer(self, *processors: Any, sinks: Any = (), sink: str | None = None, raw: bool = False) -> Explorer:
        return Explorer(self.pipeline(*sinks, processors=processors), self.layout, sink=sink, raw=raw)


def order(number: int, total: str = "5.00", status: str = "new") -> dict[str, Any]:
    return {"id": number, "email": f"u{number}@example.com", "total": total, "status": status}


def offsets(page: Page) -> list[int]:
    return [each.offset for each in page.entries]


def every_page(explorer: Explorer, wanted: Filter, bounds: Bounds, **more: Any) -> list[Page]:
    """From the first cursor to the last."""
    pages = [explorer.look(wanted, bounds=bounds, **more)]
    while pages[-1].cursor is not None and not (more.get("order") == "oldest" and is_at_the_end(pages[-1])):
        pages.append(explorer.look(wanted, bounds=bounds, cursor=pages[-1].cursor, **more))
    return pages


def is_at_the_end(page: Page) -> bool:
    return page.scanned.end >= page.log_end


def after(page: Page) -> list[Any]:
    """The rows that are shown."""
    shown = [each.itself.after if each.itself else None for each in page.entries]
    return [None if text is None else json.loads(text) for text in shown]
