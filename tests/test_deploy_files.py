"""What is in `deploy/`: checked by the tools of those it is for, and against what Tailrace tells and takes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from tailrace.spec import Platform, load_platform
from tailrace.surfaces.metrics import LastStatus
from tailrace.testing.servers.prometheus import promtool
from tests.surfaces.test_metrics import STATUS
from tools import dashboard
from tools.reference.metrics import ELSEWHERE, families

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
ALERTS, CHART = DEPLOY / "prometheus" / "alerts.yaml", DEPLOY / "helm" / "tailrace"
NAMED = re.compile(r"\btailrace_[a-z_]+\b")
SELECTED = re.compile(r"\b(?P<metric>tailrace_[a-z_]+)\{(?P<matchers>[^}]*)\}")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GIVEN = {"$__rate_interval": "5m", "$pipeline": ".*", "$sink": ".*", "$source": ".*"}
"""What Grafana puts in."""


def check(*arguments: str | Path, text: bytes | None = None) -> str:
    """What promtool says of it, which must be nothing bad."""
    done = subprocess.run([promtool(), *arguments], input=text, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Of the dashboard."""
    shown = json.loads(dashboard.FILE.read_text())
    return [target["expr"] for panel in shown["panels"] for target in panel.get("targets", ())]


def labels() -> dict[str, set[str]]:
    """Every name that a series can have, and its labels."""
    found: dict[str, set[str]] = {}
    for name, family in families():
        of_histogram = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        found |= {f"{name}{end}": {*family._labelnames, "le"} for end in of_histogram}  # type: ignore[attr-defined]
    return found


def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    assert f"{len(rules())} rules found" in check("check", "rules", ALERTS)
    assert "SUCCESS" in check("test", "rules", ALERTS.with_name("alerts.test.yaml"))
    check("check", "config", "--syntax-only", ALERTS.with_name("scrape.yaml"))


def test_prometheus_takes_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    found = queries()
    for name, value in GIVEN.items():
        found = [query.replace(name, value) for query in found]
    assert len(found) > 30 and not [query for query in found if "$" in query]
    recorded = [{"record": f"a:{number}", "expr": query} for number, query in enumerate(found)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "all", "rules": recorded}]}))
    check("check", "rules", tmp_path / "rules.yaml")


def test_prometheus_takes_what_is_told() -> None:
    """Names, kinds and help texts are as its linter wants them."""
    told, registry = LastStatus(), CollectorRegistry()
    told.keep(STATUS)
    registry.register(told)
    assert check("check", "metrics", text=generate_latest(registry)).strip() == ""


@pytest.mark.parametrize("expression", [*queries(), *(rule["expr"] for rule in rules())])
def test_every_metric_and_label_exists(expression: str) -> None:
    known = labels()
    assert not {name for name in NAMED.findall(expression)} - known.keys()
    for selected in SELECTED.finditer(expression):
        assert not set(LABEL.findall(selected["matchers"])) - known[selected["metric"]]


def test_every_metric_is_on_the_dashboard_or_in_a_rule_or_said_not_to_be() -> None:
    """Positions and offsets are for looking up; what is not shown is named here."""
    shown = {name for text in (*queries(), *(rule["expr"] for rule in rules())) for name in NAMED.findall(text)}
    families_shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {name for name, _ in families()} - families_shown == {
        "tailrace_build_info",
        "tailrace_dlq_entries",
        "tailrace_dlq_held_entries",
        "tailrace_pipeline_committed_offset",
        "tailrace_sink_last_change_timestamp_seconds",
        "tailrace_sink_last_delivery_timestamp_seconds",
        "tailrace_sink_offset",
        "tailrace_source_durable_lsn",
        "tailrace_source_last_commit_timestamp_seconds",
        "tailrace_source_log_end_offset",
        "tailrace_source_received_lsn",
        "tailrace_source_status_age_seconds",
    }


def test_what_is_called_otherwise_elsewhere_is_there() -> None:
    assert not {f"tailrace_{name}" for name in ELSEWHERE} - {name for name, _ in families()}


def test_every_alert_is_in_the_guide_and_says_what_to_do() -> None:
    guide = (ROOT / "docs" / "guides" / "watch.md").read_text()
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert set(names) == set(re.findall(r"`(Tailrace\w+)`", guide))
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] in ("page", "ticket") for rule in rules())


def test_the_dashboard_is_what_its_tool_says() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run `make docs`"
    panels = json.loads(dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert not [(one["title"], other["title"]) for one, other in combinations(panels, 2) if overlap(one, other)]


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    return not (beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_image_is_small_unprivileged_and_looked_after() -> None:
    found = list(instructions())
    stages = [rest for name, rest in found if name == "FROM"]
    assert len(stages) == 2 and not any(stage.startswith(("latest", "scratch")) for stage in stages)
    assert [rest for name, rest in found if name == "USER"] == ["10001:10001"]
    assert "/healthz" in next(rest for name, rest in found if name == "HEALTHCHECK")
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [rest.split()[:-1] for name, rest in found if name == "COPY" and "--from" not in rest]
    for file in [file for files in copied for file in files]:
        assert (ROOT / file).exists() and f"!{file}" in ignored


def test_image_and_chart_start_the_same_server() -> None:
    said = json.loads(next(rest for name, rest in instructions() if name == "CMD"))
    arguments = re.search(r"args: (\[.*\])", (CHART / "templates" / "statefulset.yaml").read_text())
    assert arguments is not None
    ours = [each.replace("/etc/tailrace/platform/", "/etc/tailrace/") for each in yaml.safe_load(arguments[1])]
    assert ours == said == shlex.split(" ".join(said))
    assert {"serve", "--config", "0.0.0.0", "8080"} <= set(said)


def test_the_image_has_a_platform_document() -> None:
    assert load_platform(DEPLOY / "platform.yaml").logging.format == "json"


def test_every_value_of_the_chart_is_used_and_allowed() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = "".join(file.read_text() for file in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    assert {name.partition(".")[0] for name in used} == set(values) == set(schema["properties"]) - {"global"}
    for name in ("image", "service", "persistence", "serviceMonitor"):
        inner = {each.partition(".")[2] for each in used if each.startswith(f"{name}.")}
        assert inner == set(values[name]) == set(schema["properties"][name]["properties"])
    Platform.model_validate({"data_dir": "/var/lib/tailrace/data", **values["platform"]})
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None and yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]
