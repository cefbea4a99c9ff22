from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from pydantic import ValidationError

from tailrace.contracts import Subject
from tailrace.errors import SinkError, TailraceError
from tailrace.sinks.file import FileSink, bucket
from tailrace.sinks.file.s3 import S3Sink
from tailrace.testing.servers import SeaweedServer
from tailrace.testing.servers.seaweed import ACCESS_KEY, SECRET_KEY
from tailrace.testing.suites.sinks import (
    DELIVERY,
    LOG,
    Change,
    Received,
    SinkSuite,
    deliver,
    span_of,
    versions,
    write,
)
from tailrace.testing.waiting import eventually
from tests.capture.postgres.authority import Authority

BUCKET = "tailrace"
KEYS = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def client(server: SeaweedServer, **options: Any) -> Any:
    login = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    return boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **login, **options)


@pytest.fixture(scope="module")
def storage(seaweed: SeaweedServer) -> SeaweedServer:
    client(seaweed).create_bucket(Bucket=BUCKET)
    return seaweed


def document(server: SeaweedServer, **options: object) -> dict[str, object]:
    return {"id": "files", "bucket": BUCKET, "prefix": uuid.uuid4().hex[:12], "endpoint": server.url, **KEYS, **options}


def sink_at(server: SeaweedServer, **options: object) -> S3Sink:
    return S3Sink.from_document(document(server, **options))


def objects(server: SeaweedServer, sink: S3Sink) -> dict[str, bytes]:
    """What a plain listing shows, table by table in the order of names, without the sink's own folder."""
    s3 = client(server)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=sink.prefix)
    keys = [each["Key"].removeprefix(sink.prefix) for page in pages for each in page.get("Contents", ())]
    mine = sorted(
        (key for key in keys if not key.startswith("_")), key=lambda key: (key.split("/")[0], key.split("/")[2])
    )
    return {key: s3.get_object(Bucket=BUCKET, Key=sink.prefix + key)["Body"].read() for key in mine}


def uploads(server: SeaweedServer, sink: S3Sink) -> list[str]:
    found = client(server).list_multipart_uploads(Bucket=BUCKET, Prefix=sink.prefix)
    return [each["Key"] for each in found.get("Uploads", ())]


def lines(server: SeaweedServer, sink: S3Sink) -> list[str]:
    return [line for content in objects(server, sink).values() for line in content.decode().split("\n")[:-1]]


class TestS3Sink(SinkSuite):
    repeats = "absorbed"
    notes_letters = True

    @pytest.fixture
    def sink(self, storage: SeaweedServer) -> S3Sink:
        return sink_at(storage)

    @pytest.fixture
    def received(self, sink: S3Sink, storage: SeaweedServer) -> Received:
        return lambda: lines(storage, sink)


@pytest.fixture
def sink(storage: SeaweedServer) -> S3Sink:
    made = sink_at(storage)
    made.prepare(DELIVERY)
    return made


def test_objects_have_the_names_and_contents_of_files(storage: SeaweedServer, tmp_path: Path) -> None:
    changes = [Change(seq, seq, 0, table=table, text="žluť 🚰") for seq, table in enumerate(("a", "größe/.", "a", "b"))]
    for kind in ({"format": "jsonl"}, {"format": "jsonl", "compression": "gzip"}, {"format": "parquet"}):
        there = sink_at(storage, **kind)
        here = FileSink.from_document({"id": "files", "path": str(tmp_path / uuid.uuid4().hex), **kind})
        for each in (there, here):
            each.prepare(DELIVERY)
            deliver(each, changes)
        files = {str(file.relative_to(here.path)): file for file in here.path.rglob("public*/*/*") if file.is_file()}
        found = objects(storage, there)
        assert found.keys() == files.keys()
        assert all(found[name] == file.read_bytes() for name, file in files.items())


def test_staged_files_are_invisible_and_aborted_at_the_next_start(sink: S3Sink, storage: SeaweedServer) -> None:
    write(sink, versions(0, keys=3, rounds=2))
    assert objects(storage, sink) == {}
    assert len(uploads(storage, sink)) == 2
    sink.prepare(DELIVERY)
    assert uploads(storage, sink) == []


def test_uploads_of_others_are_left_alone(storage: SeaweedServer) -> None:
    sink = sink_at(storage)
    s3 = client(storage)
    for key in (f"{sink.prefix}theirs.bin", f"{sink.prefix}2026-01-01/movie.jsonl"):
        s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    sink.prepare(DELIVERY)
    assert len(uploads(storage, sink)) == 2


def test_a_file_of_many_parts(storage: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_PART_BYTES", 5 * 1024 * 1024)
    sink = sink_at(storage)
    sink.prepare(DELIVERY)
    changes = [Change(seq, 0, seq, text=str(seq) * 4_000_000) for seq in range(4)]
    deliver(sink, changes, tasks=1)
    assert lines(storage, sink) == [change.value for change in changes]
    assert len(objects(storage, sink)) == 1


def test_a_second_driver_is_noticed_and_nothing_is_lost(sink: S3Sink, storage: SeaweedServer) -> None:
    changes = versions(0, keys=2, rounds=2)
    receipts = write(sink, changes)
    sink.prepare(DELIVERY)  # the other driver starts, and aborts what it takes for leftovers
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, span_of(changes), receipts)
    assert failure.value.code == "sink.rival"
    assert sink.mark(DELIVERY, LOG) == 0
    deliver(sink, changes)
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, span_of(changes), [])
    assert failure.value.code == "sink.rival"
    assert sorted(lines(storage, sink)) == sorted(change.value for change in changes)


def test_a_driver_commits_nothing_once_another_process_took_the_place(sink: S3Sink, storage: SeaweedServer) -> None:
    changes = versions(0, keys=2, rounds=2)
    code = "import sys, json; from tailrace.sinks.file.s3 import S3Sink; from tailrace.testing.suites.sinks import *"
    other = document(storage, prefix=sink.prefix)
    receipts = write(sink, changes)
    run = f"{code}; sink = S3Sink.from_document(json.loads(sys.argv[1])); sink.prepare(DELIVERY)"
    subprocess.run([sys.executable, "-c", run, json.dumps(other)], check=True)
    receipts = write(sink, changes)
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, span_of(changes), receipts)
    assert failure.value.code == "sink.rival"
    assert objects(storage, sink) == {}


def test_two_sinks_cannot_share_a_prefix(sink: S3Sink, storage: SeaweedServer) -> None:
    other = sink_at(storage, id="others", prefix=sink.prefix)
    with pytest.raises(SinkError) as failure:
        other.prepare(DELIVERY)
    assert failure.value.code == "sink.path_in_use"
    sink.prepare(DELIVERY)


def test_a_lost_ledger_is_noticed_before_anything_is_overwritten(sink: S3Sink, storage: SeaweedServer) -> None:
    changes = versions(0, keys=2, rounds=2)
    deliver(sink, changes)
    before = objects(storage, sink)
    client(storage).delete_object(Bucket=BUCKET, Key=f"{sink.prefix}_tailrace/shop.files.json")
    sink.prepare(DELIVERY)
    with pytest.raises(SinkError) as failure:
        deliver(sink, changes)
    assert failure.value.code == "sink.already_there"
    assert objects(storage, sink) == before


def test_an_answer_that_was_lost_is_no_conflict(
    sink: S3Sink, storage: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage did what it was asked to; the repeat of the request finds that its condition no longer holds."""
    real = bucket.Bucket.replace

    def twice(self: bucket.Bucket, key: str, content: bytes, tag: str | None) -> None:
        real(self, key, content, tag)
        real(self, key, content, tag)

    monkeypatch.setattr(bucket.Bucket, "replace", twice)
    changes = versions(0, keys=2, rounds=2)
    sink.prepare(DELIVERY)
    deliver(sink, changes)
    assert sorted(lines(storage, sink)) == sorted(change.value for change in changes)


CRASHING = """
import json, sys

from tailrace.failpoints import arm, kill_after, _kill_this_process
from tailrace.sinks.file.s3 import S3Sink
from tailrace.testing.suites.sinks import DELIVERY, deliver, versions

sink = S3Sink.from_document(json.loads(sys.argv[1]))
sink.prepare(DELIVERY)
deliver(sink, versions(0, keys=6, rounds=2), tasks=3)
arm(sys.argv[2], kill_after(int(sys.argv[3]), _kill_this_process))
deliver(sink, versions(12, keys=6, rounds=2), tasks=3)
print("survived")
"""

STEPS = [
    ("file.write.staged", 2),
    ("s3.commit.staged", 1),
    ("s3.commit.recorded", 1),
    ("s3.commit.completed", 2),
]
"""Steps of a commit of three files, in order, and how often the second commit gets there before it dies."""
COMMITTED = {"s3.commit.recorded", "s3.commit.completed"}


@pytest.mark.parametrize(("step", "count"), STEPS)
def test_a_kill_at_any_step_of_the_commit_leaves_each_change_once(
    storage: SeaweedServer, step: str, count: int
) -> None:
    told = document(storage)
    died = subprocess.run(
        [sys.executable, "-c", CRASHING, json.dumps(told), step, str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    sink = S3Sink.from_document(told)
    visible = lines(storage, sink)
    assert len(visible) == len(set(visible))

    sink.prepare(DELIVERY)
    assert sink.mark(DELIVERY, LOG) == (24 if step in COMMITTED else 12)
    deliver(sink, versions(12, keys=6, rounds=2), tasks=3)
    everything = [*versions(0, keys=6, rounds=2), *versions(12, keys=6, rounds=2)]
    assert sorted(lines(storage, sink)) == sorted(change.value for change in everything)
    assert uploads(storage, sink) == []


def test_uploads_that_somebody_removed_after_their_commit_are_said_to_be_lost(storage: SeaweedServer) -> None:
    told = document(storage)
    subprocess.run([sys.executable, "-c", CRASHING, json.dumps(told), "s3.commit.recorded", "1"], check=False)
    sink = S3Sink.from_document(told)
    s3 = client(storage)
    for each in s3.list_multipart_uploads(Bucket=BUCKET, Prefix=sink.prefix)["Uploads"]:
        s3.abort_multipart_upload(Bucket=BUCKET, Key=each["Key"], UploadId=each["UploadId"])
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.files_lost"
    assert "tailrace snapshot" in failure.value.hint


def test_a_storage_that_is_away_or_frozen_is_a_wait(storage: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_READ_S", 0.5)
    sink = sink_at(storage, id="impatient")
    monkeypatch.setattr(bucket, "_clients", {})
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=2))
    os.kill(storage.pid, signal.SIGSTOP)
    try:
        assert code_of(sink) == "sink.unavailable"
    finally:
        os.kill(storage.pid, signal.SIGCONT)
    deliver(sink, versions(4, keys=2, rounds=2))
    storage.kill()
    try:
        assert code_of(sink) == "sink.unavailable"
        with pytest.raises(SinkError) as failure:
            write(sink, versions(8, keys=1, rounds=1))
        assert failure.value.code == "sink.unavailable"
    finally:
        storage.start()
    monkeypatch.setattr(bucket, "_READ_S", 20.0)
    monkeypatch.setattr(bucket, "_clients", {})
    eventually(lambda: is_delivered(sink, versions(8, keys=2, rounds=2)), 60)
    assert sorted(json.loads(line)["seq"] for line in lines(storage, sink)) == list(range(12))


def is_delivered(sink: S3Sink, changes: list[Change]) -> bool:
    """An attempt as the driver makes it: a storage that has just started may not have all of itself yet."""
    try:
        sink.prepare(DELIVERY)
        deliver(sink, changes)
    except SinkError as error:
        assert error.code == "sink.unavailable", error
        return False
    return True


def code_of(sink: S3Sink) -> str:
    with pytest.raises(TailraceError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.hint
    assert SECRET_KEY not in str(failure.value.as_dict())
    return failure.value.code


@pytest.mark.parametrize(
    "options",
    [{"bucket": "nobodys"}, {"secret_access_key": "wr0ng-wr0ng"}, {"access_key_id": "nobody"}],
)
def test_a_wrong_key_or_bucket_stops_the_sink_and_the_doctor_says_so(
    storage: SeaweedServer, options: dict[str, str]
) -> None:
    sink = sink_at(storage, **options)
    assert code_of(sink) == "sink.refused"
    [found] = sink.check(Subject("files"), DELIVERY)
    assert (found.state, "wr0ng" in found.detail) == ("fail", False)


def test_the_doctor_looks_and_makes_nothing(storage: SeaweedServer) -> None:
    sink = sink_at(storage)
    [found] = sink.check(Subject("files"), DELIVERY)
    assert found.state == "ok"
    assert client(storage).list_objects_v2(Bucket=BUCKET, Prefix=sink.prefix)["KeyCount"] == 0
    [found] = sink_at(storage, endpoint="http://127.0.0.1:1").check(Subject("files"), DELIVERY)
    assert found.state == "fail"
    assert sink_at(storage, endpoint="http://127.0.0.1:1").model_dump_json().count(SECRET_KEY) == 0


def test_tls(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    mine = ours.sign("server", "IP:127.0.0.1")
    with SeaweedServer(cert=mine.cert, key=mine.key) as server:
        client(server, verify=str(ours.root)).create_bucket(Bucket=BUCKET)
        sink = sink_at(server, root_cert=str(ours.root))
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=2, rounds=2))
        assert sink.mark(DELIVERY, LOG) == 4
        assert code_of(sink_at(server, root_cert=str(others.root))) == "sink.refused"
        assert code_of(sink_at(server, root_cert=str(tmp_path / "nothing.pem"))) == "config.bad_tls"


@pytest.mark.parametrize(
    "options",
    [
        {"bucket": "a/b"},
        {"bucket": "UP"},
        {"prefix": "a/../b"},
        {"endpoint": "localhost:9000"},
        {"endpoint": "http://user:pw@host"},
        {"access_key_id": None},
        {"secret_access_key": None},
        {"format": "jsonl", "compression": "snappy"},
        {"path": "/x"},
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object]) -> None:
    told = {"id": "files", "bucket": BUCKET, "endpoint": "http://127.0.0.1:1", **KEYS, **options}
    with pytest.raises(ValidationError):
        S3Sink.from_document(told)


def test_a_url_is_no_directory() -> None:
    with pytest.raises(ValidationError, match="not a directory"):
        FileSink.from_document({"id": "files", "path": "s3://bucket/prefix"})


@pytest.mark.parametrize(("given", "kept"), [("", ""), ("/a//b/", "a/b/"), ("a", "a/")])
def test_a_prefix_is_a_folder(given: str, kept: str) -> None:
    assert S3Sink.from_document({"id": "files", "bucket": BUCKET, "prefix": given}).prefix == kept
