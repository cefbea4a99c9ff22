"""Sinks of the Kinesis tests, what is in a stream, and a proxy that throttles."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

import boto3

from tailrace.sinks.kinesis import KinesisSink
from tailrace.testing.servers import KinesisServer

NOBODY = "http://127.0.0.1:1"
LOGIN = {"access_key_id": "AKIA", "secret_access_key": "hunter2"}
OVER = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate exceeded for shard"}


def kinesis_sink(server: KinesisServer, **more: Any) -> KinesisSink:
    """A sink with streams of its own."""
    document = {"id": "bus", "endpoint": server.endpoint, "region": "us-east-1", **LOGIN, "send_timeout_secs": 30}
    document |= {"stream_name": f"s-{uuid.uuid4().hex}", "create_streams": {"shards": 2}}
    return KinesisSink.from_document({**document, **more})


def client(server: KinesisServer) -> Any:
    return boto3.client(
        "kinesis",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id="AKIA",
        aws_secret_access_key="hunter2",
    )


def records(server: KinesisServer, stream: str) -> list[dict[str, Any]]:
    """Everything in the stream, shard by shard, in order."""
    asked, found = client(server), []
    for shard in asked.list_shards(StreamName=stream)["Shards"]:
        start = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        at = asked.get_shard_iterator(StreamName=stream, **start)["ShardIterator"]
        while (answer := asked.get_records(ShardIterator=at))["Records"]:
            found += answer["Records"]
            at = answer["NextShardIterator"]
    return found


def values(server: KinesisServer, stream: str) -> list[str]:
    return [record["Data"].decode() for record in records(server, stream)]


Refuse = Callable[[str], dict[str, str] | None]
"""What Kinesis answers for the record with this value; None: it is stored."""


class KinesisProxy:
    """Passes on what a real service might: of each call the records that `refuse` lets through. `calls` has the values
    of each call as it came, `missing_answers` of those that are carried out and never answered."""

    def __init__(self, target: KinesisServer, refuse: Refuse) -> None:
        self.refuse, self.calls = refuse, list[list[str]]()
        self.missing_answers = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                puts = self.headers.get("X-Amz-Target", "").endswith("PutRecords")
                answer = proxy._put(target, self.headers, body) if puts else _forward(target, self.headers, body)
                if puts and proxy.missing_answers:
                    proxy.missing_answers -= 1
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _put(self, target: KinesisServer, headers: Any, body: bytes) -> tuple[int, bytes]:
        call = json.loads(body)
        found = [base64.b64decode(record["Data"]).decode() for record in call["Records"]]
        self.calls.append(found)
        answers = [self.refuse(value) for value in found]
        passed = [record for record, answer in zip(call["Records"], answers, strict=True) if answer is None]
        if passed:
            status, text = _forward(target, headers, json.dumps({**call, "Records": passed}).encode())
            if status != 200:
                return status, text
            stored = iter(json.loads(text)["Records"])
        else:
            stored = iter(())
        told = [next(stored) if answer is None else answer for answer in answers]
        answer = {"FailedRecordCount": len(found) - len(passed), "Records": told}
        return 200, json.dumps(answer).encode()


def _forward(target: KinesisServer, headers: Any, body: bytes) -> tuple[int, bytes]:
    kept = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
    try:
        with urlopen(Request(target.endpoint, data=body, headers=kept)) as answer:
            return answer.status, answer.read()
    except OSError as error:
        reader: Any = error
        return int(reader.code), bytes(reader.read())
