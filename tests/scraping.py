"""Asking for metrics as Prometheus does."""

from __future__ import annotations

import http.client

from prometheus_client.parser import text_string_to_metric_families

Figures = dict[tuple[str, ...], float]


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def figures(text: str) -> Figures:
    """(name, values of its labels in the order of their names) → value."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name.removeprefix("tailrace_"), *sample.labels.values()): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found
