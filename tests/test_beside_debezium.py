"""Records beside those of a real Debezium: the same database, every event of it, its key, its payload, its schema.

Both read all that happens to one database (`tests/debezium_story.py`). What is known to be other is in `DECLARED`, and
in docs/envelopes.md."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.testing.servers import DebeziumConnect, KafkaBroker, PostgresServer
from tailrace.testing.waiting import eventually
from tests import debezium_story
from tests.capture.running import Database

pytestmark = pytest.mark.soak

NAME, OURS, SLOT = "beside", "ours", "tailrace_beside"
DEFAULTS = {"publication.autocreate.mode": "all_tables", "skipped.operations": "none"}
"""Of Debezium, but for these: it would look for tables by name, and leave truncates out."""
PIPELINE = """
metadata: {{name: beside}}
spec:
  source: {{type: postgres, config: {{id: beside, dsn: "{dsn}", tables: ["*.*"]}}}}
  processors:
    - {{type: filter, ops: [create, update, delete, truncate, message]}}
    - {{type: route, rules: [{{when: {{operations: [message]}}, topic: ours.message}},
        {{when: {{table: "Odd*"}}, topic: ours.public.Odd_n_me}}]}}
  sinks:
    - type: kafka
      config: {{id: kafka, brokers: "{brokers}", topic: "ours.${{source.schema}}.${{source.table}}",
        envelope: {{type: debezium, values: debezium, schemas: {schemas}, wrapper: {schemas}, tombstones: true}}}}
"""

Record = tuple[Any, Any, dict[str, str]]
"""Key and value, None where there is none; headers."""
Topics = dict[str, list[Record]]
"""By what stands behind the prefix."""


class Difference(NamedTuple):
    """Between two records; `type` is that of the column it is in, "" where it is in none."""

    place: str
    type: str
    ours: Any
    theirs: Any


def _lists(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, list) for each in value)


def _same_real(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return all(one == other or _same_real(one, other) for one, other in zip(ours, theirs, strict=True))
    return struct.pack("f", ours) == struct.pack("f", theirs)


def _same_json(ours: Any, theirs: Any) -> bool:
    """But for blanks; JSON's null is null here."""
    if isinstance(ours, list):
        return all(_same_json(one, other) for one, other in zip(ours, theirs, strict=True))
    return ours == theirs or (theirs == "null" and ours is None) or ours.split() == theirs.split()


def _in_arrays(kinds: str, what: str = "") -> Callable[[Difference], bool]:
    return lambda d: bool(re.fullmatch(rf"({kinds})\[\]", d.type)) and what in json.dumps(d.ours)


DECLARED: dict[str, Callable[[Difference], bool]] = {
    "where a change stands in the log": lambda d: bool(re.fullmatch(r"(payload\.)?source\.(lsn|sequence)", d.place)),
    "what writes, and when": lambda d: bool(re.fullmatch(r"(payload\.)?(source\.)?(version|ts_(ms|us|ns))", d.place)),
    "an index that is no primary key is the identity": lambda d: d.type == "of by_index's key",
    "headers": lambda d: d.place == "headers" and not d.ours,
    "no tombstone without a key": lambda d: d.place == "tombstone",
    "arrays of many dimensions": lambda d: _lists(d.ours),
    "null in an array of labels": lambda d: d.theirs is None and _in_arrays("mood|tsvector|ltree|isbn", "null")(d),
    "may an array of labels have nulls": lambda d: d.place.endswith(".items.optional") and not d.theirs,
    "names have their values": lambda d: d.type == "name" and d.theirs is None,
    "the fewest digits": lambda d: d.type in ("float4", "float4[]") and _same_real(d.ours, d.theirs),
    "JSON": lambda d: d.type in ("json", "jsonb", "json[]", "jsonb[]") and _same_json(d.ours, d.theirs),
    "digits of a domain": lambda d: d.type == "moment" and d.theirs == d.ours.replace("000Z", "Z"),
    "no number, in an array": lambda d: d.theirs is None and d.type == "numeric[]",
    "before Christ and infinity, in arrays": _in_arrays("date|timestamp|timestamptz"),
    "the last moment": lambda d: d.type == "timestamp" and d.ours == -9222426057709551617,
}
"""What is other, by what the documentation says of it. Each is met."""


@pytest.mark.parametrize(("major", "schemas"), [(18, True), (18, False), (15, True)])
def test_every_event_is_what_debezium_wrote(major: int, schemas: bool, tmp_path: Path) -> None:
    with PostgresServer(major) as server, KafkaBroker() as broker, Database(server) as db:
        ours, theirs = carried(db, broker, tmp_path, schemas=schemas)
        types = columns(db)
    assert ours.keys() == theirs.keys()
    assert sum(map(len, theirs.values())) > 150
    found = [each for topic in theirs for each in compared(types.get(topic, {}), topic, ours[topic], theirs[topic])]
    unknown = [each for each in found if not any(is_it(each) for is_it in DECLARED.values())]
    assert not unknown, "\n".join(str(each)[:300] for each in unknown[:40])
    met = Counter(name for each in found for name, is_it in DECLARED.items() if is_it(each))
    assert met.keys() == DECLARED.keys() - (set() if schemas else {"may an array of labels have nulls"})


def carried(db: Database, broker: KafkaBroker, folder: Path, *, schemas: bool) -> tuple[Topics, Topics]:
    """What the two wrote of one story."""
    db.run(*debezium_story.before(db.server.major))
    with DebeziumConnect(db.dsn, broker, NAME, ".*", schemas=schemas, settings=DEFAULTS) as connect:
        connect.wait_for_stream()
        db.run(f"CREATE PUBLICATION {SLOT} FOR ALL TABLES")
        db.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        with db.connect() as connection:
            for statement, parameters in debezium_story.meanwhile(db.server.major):
                connection.execute(statement.encode(), parameters)
        ended = lambda: f"{NAME}.public.finish" in topics(broker, NAME)  # noqa: E731
        eventually(ended, 120, every=0.5, what=lambda: connect.log.read_text(errors="replace")[-5000:])
    theirs = {topic.removeprefix(NAME): records(broker, topic) for topic in topics(broker, NAME)}
    make(broker, [OURS + place for place in theirs])
    run(db, broker, folder, schemas)
    return {topic.removeprefix(OURS): records(broker, topic) for topic in topics(broker, OURS)}, theirs


def run(db: Database, broker: KafkaBroker, folder: Path, schemas: bool) -> None:
    document, platform = folder / "pipeline.yaml", folder / "platform.yaml"
    document.write_text(PIPELINE.format(dsn=db.dsn, brokers=broker.bootstrap, schemas=str(schemas).lower()))
    platform.write_text(f"{{data_dir: {folder}/data}}")
    command = [sys.executable, "-m", "tailrace", "run", str(document), "--platform-config", str(platform)]
    done = subprocess.run([*command, "--until-caught-up"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def columns(db: Database) -> dict[str, dict[str, str]]:
    """The types of columns as they are declared, by topic and column."""
    query = """SELECT format('.%s.%s', n.nspname, regexp_replace(c.relname, '[^a-zA-Z0-9._-]', '_')), a.attname,
      CASE WHEN e.typname IS NULL THEN t.typname ELSE e.typname || '[]' END
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.typarray = t.oid
      WHERE a.attnum > 0 AND n.nspname IN ('public', 'other')"""
    found: dict[str, dict[str, str]] = {}
    for topic, name, kind in db.rows(query):
        found.setdefault(topic, {})[name] = kind
    return found


def compared(types: dict[str, str], topic: str, ours: list[Record], theirs: list[Record]) -> Iterator[Difference]:
    """All differences of a topic's records, one by one. A tombstone without a key has no other to be compared with."""
    keyed = [record for record in theirs if record[:2] != (None, None)]
    yield from (Difference("tombstone", "", None, None) for _ in range(len(theirs) - len(keyed)))
    yield from () if len(ours) == len(keyed) else [Difference(f"{topic} length", "", len(ours), len(keyed))]
    for (key, value, headers), (their_key, their_value, their_headers) in zip(ours, keyed, strict=False):
        yield from differences("headers", headers, their_headers)
        of_key = "of by_index's key" if topic == ".public.by_index" else ""
        yield from (each._replace(type=of_key) for each in differences("key", key, their_key))
        for each in differences("", value, their_value):
            parts = re.findall(r"(?:^|\.)(?:before|after)\.(?:fields\.)?([^.]+)", each.place)
            yield each._replace(place=each.place.removeprefix("."), type=types.get(parts[0], "") if parts else "")


def differences(place: str, ours: Any, theirs: Any) -> Iterator[Difference]:
    """Of two JSON values, members and their order included. Lists of fields are compared field by field."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if list(ours) != list(theirs):
            yield Difference(place, "", list(ours), list(theirs))
        for name in [each for each in theirs if each in ours]:
            yield from differences(f"{place}.{name}", ours[name], theirs[name])
    elif _are_fields(ours) and _are_fields(theirs):
        mine, other = ({each["field"]: each for each in fields} for fields in (ours, theirs))
        yield from differences(place, mine, other)
    elif json.dumps(ours) != json.dumps(theirs):
        yield Difference(place, "", ours, theirs)


def _are_fields(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "field" in each for each in value)


def topics(broker: KafkaBroker, prefix: str) -> list[str]:
    known = AdminClient(_client(broker)).list_topics(timeout=10).topics
    return sorted(name for name in known if name.startswith(f"{prefix}."))


def make(broker: KafkaBroker, names: list[str]) -> None:
    """With one partition, so that they keep all records in order."""
    admin = AdminClient(_client(broker))
    for each in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        each.result(timeout=30)


def records(broker: KafkaBroker, topic: str) -> list[Record]:
    consumer = Consumer({**_client(broker), "group.id": "check", "enable.auto.commit": False})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, low)])
        found: list[Record] = []
        while low < high:
            for message in consumer.consume(min(1000, high - low), timeout=10):
                assert message.error() is None, message.error()
                pairs: Any = message.headers() or ()
                headers = {name: data.decode() for name, data in pairs}
                found.append((_parsed(message.key()), _parsed(message.value()), headers))
                low = (message.offset() or 0) + 1
        return found
    finally:
        consumer.close()


def _client(broker: KafkaBroker) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap}


def _parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)
