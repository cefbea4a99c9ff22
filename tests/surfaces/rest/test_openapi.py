"""The OpenAPI document: what answers say of themselves is so, whatever is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.surfaces.rest.app import routed
from tests.surfaces.rest.conftest import Asking, document

CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"
LEFT_OUT = "events$|sensing|drift|healthz$|readyz$"
"""Streams that never end, what answers 501, and what answers 503 where nothing is made actual."""


@pytest.mark.slow
def test_whatever_is_asked_is_answered_as_documented(client: Asking, tmp_path: Path) -> None:
    client.post("/v1/pipelines", json=document())
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(client.base_url.join("/openapi.json"))]
    options = ["--checks", CHECKS, "--max-examples", "8", "--exclude-path-regex", LEFT_OUT]
    settled = ["--phases", "examples,coverage,fuzzing", "--generation-deterministic"]
    done = subprocess.run(
        [*command, *options, *settled], capture_output=True, text=True, cwd=tmp_path, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_every_operation_has_a_name_a_purpose_and_problems() -> None:
    paths = routed().openapi()["paths"]
    operations = [each for methods in paths.values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["description"].endswith((".", "`")) for each in operations)
    assert all("application/problem+json" in each["responses"]["default"]["content"] for each in operations)
    assert all(path.startswith("/v1/") for path in paths)
