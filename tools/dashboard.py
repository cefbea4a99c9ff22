"""The Grafana dashboard, `deploy/grafana/tailrace.json`, made from the rows below: `make docs`.

python -m tools.dashboard [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "tailrace.json"
OF_SINK = 'pipeline=~"$pipeline", sink=~"$sink", source=~"$source"'
OF_SOURCE = 'source=~"$source"'
OF_PIPELINE = 'pipeline=~"$pipeline"'
TO_SINK = "{{pipeline}}/{{sink}} of {{source}}"
TO_TABLE = "{{sink}}: {{table}}"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Panel:
    """A graph of one or more (query, legend) pairs. `about`: what to read from it."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"


def rate(metric: str, where: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def quantiles(metric: str) -> list[tuple[str, str]]:
    """Of a histogram of sinks."""
    buckets = rate(f"{metric}_bucket", OF_SINK, "pipeline, sink, le")
    return [(f"histogram_quantile({each}, {buckets})", f"{{{{sink}}}} {each:.0%}") for each in QUANTILES]


ROWS: dict[str, list[Panel]] = {
    "At a glance": [
        Panel(
            "What stopped or waits",
            [
                (f'tailrace_source_state{{{OF_SOURCE}, state!~"running|starting"}} == 1', "{{source}}: {{state}}"),
                (
                    f'tailrace_sink_state{{{OF_SINK}, state!~"running|starting"}} == 1',
                    "{{pipeline}}/{{sink}}: {{state}}",
                ),
            ],
            about="Empty when all is well.",
            kind="stat",
        ),
        Panel(
            "Warnings that stand",
            [
                (f"tailrace_source_warnings{{{OF_SOURCE}}} > 0", "{{source}}"),
                (f"tailrace_sink_warnings{{{OF_SINK}}} > 0", "{{pipeline}}/{{sink}}"),
            ],
            about="The log has their words.",
            kind="stat",
        ),
        Panel(
            "Pipelines, and the age of these figures",
            [
                ("tailrace_pipelines", "pipelines"),
                ("time() - tailrace_status_timestamp_seconds", "seconds old"),
                ("time() - tailrace_start_timestamp_seconds", "seconds since the start"),
            ],
            kind="stat",
        ),
    ],
    "Throughput": [
        Panel(
            "Rows captured",
            [
                (rate("tailrace_source_rows_total", OF_SOURCE, "source"), "{{source}}"),
                (rate("tailrace_source_snapshot_rows_total", OF_SOURCE, "source"), "{{source}}, of snapshots"),
            ],
            "rows/s",
        ),
        Panel(
            "Rows delivered", [(rate("tailrace_sink_rows_total", OF_SINK, "pipeline, sink, source"), TO_SINK)], "rows/s"
        ),
        Panel(
            "Bytes delivered", [(rate("tailrace_sink_bytes_total", OF_SINK, "pipeline, sink, source"), TO_SINK)], "Bps"
        ),
        Panel(
            "Rows delivered, by table",
            [(f"topk(15, {rate('tailrace_sink_rows_total', OF_SINK, 'sink, table')})", TO_TABLE)],
            "rows/s",
        ),
        Panel(
            "Transactions captured",
            [(rate("tailrace_source_transactions_total", OF_SOURCE, "source"), "{{source}}")],
            "ops",
        ),
        Panel(
            "Growth of the log", [(rate("tailrace_source_log_bytes_total", OF_SOURCE, "source"), "{{source}}")], "Bps"
        ),
        Panel("Batches", [(rate("tailrace_sink_batches_total", OF_SINK, "pipeline, sink, source"), TO_SINK)], "ops"),
    ],
    "Lag": [
        Panel("Of the log behind the server", [(f"tailrace_source_lag_seconds{{{OF_SOURCE}}}", "{{source}}")], "s"),
        Panel("Of sinks behind the log", [(f"tailrace_sink_lag_seconds{{{OF_SINK}}}", TO_SINK)], "s"),
        Panel(
            "From commit to sink",
            quantiles("tailrace_sink_delay_seconds"),
            "s",
            "Of the newest change of each table in each batch.",
        ),
        Panel("Of the log, WAL", [(f"tailrace_source_lag_bytes{{{OF_SOURCE}}}", "{{source}}")], "bytes"),
        Panel(
            "Of sinks, rows and bytes",
            [
                (f"tailrace_sink_lag_rows{{{OF_SINK}}}", f"{TO_SINK}, rows"),
                (f"tailrace_sink_lag_bytes{{{OF_SINK}}}", f"{TO_SINK}, bytes"),
            ],
        ),
        Panel("Of tables", [(f"topk(15, tailrace_sink_table_lag_seconds{{{OF_SINK}}})", TO_TABLE)], "s"),
    ],
    "Batches": [
        Panel("How long a batch takes", quantiles("tailrace_sink_batch_seconds"), "s"),
        Panel("How many rows it has", quantiles("tailrace_sink_batch_rows"), "short"),
        Panel(
            "Share that only their bound ended",
            [
                (
                    f"{rate('tailrace_sink_bound_limited_batches_total', OF_SINK, 'pipeline, sink, source')}"
                    f" / {rate('tailrace_sink_batches_total', OF_SINK, 'pipeline, sink, source')}",
                    TO_SINK,
                )
            ],
            "percentunit",
            "Near 1 for long: raise batch.max_events or max_bytes.",
        ),
    ],
    "The slot and the log": [
        Panel(
            "Time until the slot is lost",
            [(f"tailrace_source_time_to_loss_seconds{{{OF_SOURCE}}}", "{{source}}")],
            "s",
            "Nothing: no end in sight.",
        ),
        Panel(
            "WAL the slot holds, and may hold",
            [
                (f"tailrace_source_retained_wal_bytes{{{OF_SOURCE}}}", "{{source}} holds"),
                (f"tailrace_source_safe_wal_bytes{{{OF_SOURCE}}}", "{{source}} may still be written"),
            ],
            "bytes",
        ),
        Panel(
            "Schema versions",
            [(f"sum by (source) (tailrace_source_schema_versions{{{OF_SOURCE}}})", "{{source}}")],
            about="A step is a schema change.",
        ),
    ],
    "What goes wrong": [
        Panel(
            "Errors of sinks",
            [(f"increase(tailrace_sink_errors_total{{{OF_SINK}}}[5m])", "{{sink}}: {{code}}")],
            "short",
        ),
        Panel(
            "Errors and restarts of taps",
            [
                (f"increase(tailrace_source_errors_total{{{OF_SOURCE}}}[5m])", "{{source}}: {{code}}"),
                (f"increase(tailrace_source_restarts_total{{{OF_SOURCE}}}[5m])", "{{source}}: restarts"),
            ],
        ),
        Panel(
            "Dropped by processors, skipped by sinks",
            [
                (
                    rate("tailrace_sink_dropped_changes_total", OF_SINK, "sink, processor, reason"),
                    "{{processor}}: {{reason}}",
                ),
                (rate("tailrace_sink_skipped_records_total", OF_SINK, "sink, code"), "{{sink}}: {{code}}"),
            ],
            "rows/s",
        ),
        Panel(
            "Open dead letters",
            [(f'tailrace_dlq_letters{{{OF_PIPELINE}, sink=~"$sink"}}', "{{pipeline}}/{{sink}}: {{code}}")],
        ),
        Panel(
            "How full the dead letters are",
            [(f"tailrace_dlq_saturation_ratio{{{OF_PIPELINE}}}", "{{pipeline}}")],
            "percentunit",
        ),
        Panel(
            "Dead letters gone",
            [
                (f"increase(tailrace_dlq_evicted_total{{{OF_PIPELINE}}}[1h])", "{{pipeline}}: no room"),
                (f"increase(tailrace_dlq_expired_total{{{OF_PIPELINE}}}[1h])", "{{pipeline}}: too old"),
            ],
        ),
    ],
    "Snapshots and lake tables": [
        Panel("Rows read", [(f"tailrace_snapshot_rows{{{OF_SOURCE}}}", "{{table}}")]),
        Panel(
            "How much of the table that is",
            [(f"tailrace_snapshot_rows{{{OF_SOURCE}}} / tailrace_snapshot_estimated_rows{{{OF_SOURCE}}}", "{{table}}")],
            "percentunit",
            "By the database's own guess of how many rows there are.",
        ),
        Panel(
            "Upkeep's debt",
            [(f"topk(15, tailrace_sink_debt{{{OF_SINK}}})", "{{table}}: {{kind}}")],
            about="Of lake tables.",
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """As Grafana imports it; the data source is asked for then."""
    return {
        "__inputs": [
            {
                "name": "DS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "uid": "tailrace",
        "title": "Tailrace",
        "tags": ["tailrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_variable("pipeline"), _variable("sink"), _variable("source")]},
        "panels": list(_panels()),
    }


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": _source(),
        "query": f"label_values(tailrace_sink_state, {label})",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        at = {"x": 0, "y": top, "w": COLUMNS * WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}
        number, top = number + 1, top + 1
        for place, panel in enumerate(panels):
            row, column = divmod(place, COLUMNS)
            at = {"x": column * WIDTH, "y": top + row * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield _panel(panel, number, at)
            number += 1
        top += -(-len(panels) // COLUMNS) * HEIGHT


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "datasource": _source()}
        for place, (expression, legend) in enumerate(panel.queries)
    ]
    options: dict[str, Any] = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "stat":
        options = {"textMode": "value_and_name", "colorMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _source(),
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${DS}"}


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            FILE.write_text(text())
        case ["--check"]:
            if FILE.read_text() != text():
                sys.exit(f"{FILE.name} is not what tools/dashboard.py says: run `make docs`")
        case _:
            sys.exit("usage: python -m tools.dashboard [--check]")
