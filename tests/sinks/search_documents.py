"""What an OpenSearch server has, for tests that wrote it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pyarrow as pa

from tailrace.change import CHANGES
from tailrace.config import parse_template
from tailrace.contracts import Span, Written
from tailrace.sinks.opensearch import OpenSearchSink
from tailrace.testing.servers import OpenSearchServer
from tailrace.testing.suites.sinks import DELIVERY, LOG, Change

NOBODY = "http://127.0.0.1:1"


def new_name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def sink_of(server: OpenSearchServer, **options: Any) -> OpenSearchSink:
    """A sink with marks and an index of its own."""
    name = new_name()
    settings = {"index.number_of_replicas": 0}
    own = {"id": name, "urls": [server.url], "index": name + "-${source.table}", "settings": settings}
    return OpenSearchSink.from_document({**own, **options})


def ask(server: OpenSearchServer, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, server.url + path, json=body, trust_env=False, timeout=60)
    assert answer.status_code != 400, answer.text
    return answer.json() if answer.content else {}


def documents(server: OpenSearchServer, index: str) -> dict[str, Any]:
    """Those of an index or a pattern, by id."""
    ask(server, "POST", f"/{index}/_refresh?allow_no_indices=true")
    hits = ask(server, "GET", f"/{index}/_search?size=10000&version=true&allow_no_indices=true")["hits"]["hits"]
    return {hit["_id"]: hit["_source"] for hit in hits}


def records(server: OpenSearchServer, index: str) -> list[str]:
    """The records of the suite's changes, in order."""
    found = sorted(documents(server, index).values(), key=lambda record: record["seq"])
    return [json.dumps(record, ensure_ascii=False) for record in found]


def change(seq: int, op: str, id: int | None, after: dict[str, Any] | str | None, *unchanged: str) -> dict[str, Any]:
    """A row of a batch; `after` may be text."""
    text = after if after is None or isinstance(after, str) else json.dumps(after)
    key = None if id is None else json.dumps({"id": id})
    return {**Change(seq, id or 0, 0).row(), "op": op, "key": key, "after": text, "unchanged": list(unchanged) or None}


def moved(seq: int, old: int, new: int, after: dict[str, Any], *unchanged: str) -> list[dict[str, Any]]:
    """A key change: a delete and a create."""
    deleted, created = change(seq, "d", old, None), change(seq + 1, "c", new, after, *unchanged)
    deleted["headers"], created["headers"] = [("new_key", created["key"])], [("old_key", deleted["key"])]
    return [deleted, created]


def batch_of(sink: OpenSearchSink, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """What the query gives the writer for these rows. Of templates it fills those that name the table."""
    types = {field.name: field.type for field in CHANGES} | {"value": pa.string(), "event_id": pa.string()}
    names = [*sink.columns(), *(["value"] if sink.wants_value() else [])]
    columns: dict[str, Any] = {name: pa.array([row[name] for row in rows], types[name]) for name in names}
    for name, template in sink.routes().items():
        columns[name] = pa.array([_filled(template, row) for row in rows], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def write(
    sink: OpenSearchSink, *rows: dict[str, Any], log: str = LOG, start: int | None = None, letters: tuple[str, ...] = ()
) -> Written:
    """One attempt at the rows' span."""
    first, end = rows[0]["seq"] if start is None else start, rows[-1]["seq"] + 1
    return sink.open(DELIVERY, Span(log, first, end, letters), 0).write(iter([batch_of(sink, list(rows))]))


def deliver(sink: OpenSearchSink, *rows: dict[str, Any], log: str = LOG) -> None:
    """A whole batch."""
    assert not write(sink, *rows, log=log).rejected
    sink.commit(DELIVERY, Span(log, rows[0]["seq"], rows[-1]["seq"] + 1), [""])


def _filled(template: str, row: dict[str, Any]) -> str | None:
    texts: list[str | None] = []
    for part in parse_template(template):
        if isinstance(part, str):
            texts.append(part)
            continue
        holder, name = part.path
        found = row[name] if holder == "source" else json.loads(row[holder] or "{}").get(name)
        texts.append(None if found is None else str(found))
    return None if None in texts else "".join(text for text in texts if text is not None)
