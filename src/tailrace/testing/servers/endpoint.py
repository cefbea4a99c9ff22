"""The program behind `HttpEndpoint`: `python -m tailrace.testing.servers.endpoint FOLDER PORT [CERT KEY [CA]]`.

It answers 200 and writes every request to `FOLDER/requests.jsonl` before it answers, unless a rule of
`FOLDER/rules.json` says otherwise.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Endpoint(ThreadingHTTPServer):
    """Serves from threads; they share what is written and how often each rule held."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._rules = folder / "rules.json"
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._requests = (folder / "requests.jsonl").open("a", encoding="utf-8")

    def rule_for(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first rule that holds for a request, and holds still; else that of an ordinary answer."""
        rules = json.loads(self._rules.read_text()) if self._rules.exists() else []
        with self._lock:
            for rule in rules:
                if _holds(rule, request) and (rule["times"] is None or self._held[rule["id"]] < rule["times"]):
                    self._held[rule["id"]] += 1
                    return dict(rule)
        return {"status": 200, "headers": {}, "text": "", "stall_s": 0}

    def write(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        began = time.time()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value.encode("latin-1").decode() for name, value in self.headers.items()},
            "body": body.decode(),
            "client": self.client_address[1],
            "began": began,
        }
        rule = self.server.rule_for(request)
        if rule["stall_s"]:
            time.sleep(rule["stall_s"])
        if rule["status"] == 0:
            self.server.write({**request, "status": 0, "ended": time.time()})
            self.close_connection = True
            return
        self.server.write({**request, "status": rule["status"], "ended": time.time()})
        text = rule["text"].encode()
        self.send_response(rule["status"])
        for name, value in {**rule["headers"], "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_PATCH = do_OPTIONS = do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Requests are in their file."""


def _holds(rule: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    name, value = rule["lacks"] or ("", None)
    return (
        request["path"].startswith(rule["path"])
        and (rule["contains"] is None or rule["contains"] in request["body"])
        and (rule["larger_than"] is None or len(request["body"]) > rule["larger_than"])
        and (rule["lacks"] is None or request["headers"].get(name) != value)
    )


def main(folder: Path, port: int, *tls: str) -> None:
    server = Endpoint(folder, port)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls[:2])
        for authority in tls[2:]:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
