"""Pipeline and platform documents: shapes, defaults, planned keys, connectors, sharing, JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator
from pydantic import Field, TypeAdapter

from tailrace import registry
from tailrace.config import Dsn, Model, NativeEnvelope, Template
from tailrace.config.problems import DocumentError, Problem
from tailrace.contracts import Delivery, RecordSink, Span, Writer, Written
from tailrace.errors import ConfigError, SetupError
from tailrace.registry import SINKS, SOURCES
from tailrace.spec import Pipeline, Platform, json_schema, later, load_pipelines, load_platform


class PondSource(Model):
    """A source that exists only here."""

    id: str
    dsn: Annotated[Dsn, Field(description="Where it is.", examples=["host=pond password=x"])]
    tables: Annotated[tuple[str, ...], Field(min_length=1, examples=[["shop.orders"]])]


class PipeWriter:
    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        return Written(str(sum(batch.num_rows for batch in batches)))


class PipeSink(RecordSink):
    """A sink that exists only here; a repeat is counted twice."""

    topic: Annotated[Template, Field(description="Where to.", examples=["shop.${source.table}"])]

    def open(self, delivery: Delivery, span: Span, task: int) -> Writer:
        return PipeWriter()


@pytest.fixture(autouse=True)
def connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES.built_in, "pond", f"{__name__}:PondSource")
    monkeypatch.setitem(SINKS.built_in, "pipe", f"{__name__}:PipeSink")
    monkeypatch.setitem(later.SOURCE, "pond", later.SOURCE["postgres"])
    monkeypatch.setitem(later.SINK, "pipe", later.SINK["kafka"])


SHOP = """\
apiVersion: tailrace/v1
kind: Pipeline
metadata:
  name: shop
spec:
  source:
    type: pond
    config:
      id: shop-db
      dsn: ${DSN}
      tables: [shop.orders, "shop.*"]
  sinks:
    - type: pipe
      config:
        id: out
        topic: ${PREFIX:-cdc}.${source.table}
"""
ENVIRON = {"DSN": "postgres://u:hunter2@h/shop"}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "pipeline.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture
def load(write: Write) -> Callable[[str], Pipeline]:
    return lambda text: load_pipelines([write(text)], ENVIRON)[0]


@pytest.fixture
def refused(write: Write) -> Callable[[str], list[Problem]]:
    def refused(text: str) -> list[Problem]:
        with pytest.raises(DocumentError) as caught:
            load_pipelines([write(text)], ENVIRON)
        assert "hunter2" not in str(caught.value)
        return caught.value.problems

    return refused


Load = Callable[[str], Pipeline]
Refused = Callable[[str], list[Problem]]


class TestPipeline:
    def test_a_small_document_and_its_defaults(self, load: Load) -> None:
        pipeline = load(SHOP)
        assert (pipeline.name, pipeline.metadata.tenant, pipeline.source_id) == ("shop", "default", "shop-db")
        assert pipeline.source == PondSource(id="shop-db", dsn=Dsn(ENVIRON["DSN"]), tables=("shop.orders", "shop.*"))
        assert pipeline.sinks == (PipeSink(id="out", topic="cdc.${source.table}"),)
        assert pipeline.sinks[0].envelope == NativeEnvelope()
        batch, sharding = pipeline.spec.batch, pipeline.spec.sharding
        assert (batch.max_events, batch.max_bytes, batch.max_ms) == (200_000, 64 * 1024**2, None)
        assert batch.respect_source_tx
        assert (sharding.mode, sharding.count, sharding.key) == ("hash", None, None)

    def test_everything_said(self, load: Load) -> None:
        pipeline = load(
            SHOP.replace("tailrace/v1", "deltaforge/v1").replace(
                "  name: shop\n",
                "  name: shop\n  tenant: acme\n  labels: {team: a}\n  annotations: {note: b}\n",
            )
            + "  processors: []\n"
            "  batch: {max_events: 500, max_bytes: 1048576, max_ms: 1000, respect_source_tx: true}\n"
            "  sharding: {mode: hash, count: 4, key: customer_id}\n"
        )
        assert pipeline.metadata.model_dump() == {
            "name": "shop",
            "tenant": "acme",
            "labels": {"team": "a"},
            "annotations": {"note": "b"},
        }
        assert pipeline.spec.batch.model_dump() == {
            "max_events": 500,
            "max_bytes": "1MiB",
            "latency": None,
            "max_ms": 1000,
            "respect_source_tx": True,
            "max_inflight": 1,
        }
        assert pipeline.spec.sharding.model_dump() == {"mode": "hash", "count": 4, "key": "customer_id"}

    @pytest.mark.parametrize(
        ("batch", "objective"),
        [("{}", 0.3), ("{latency: 2s}", 2.0), ("{latency: 0s}", 0.0), ("{max_ms: 100}", 0.0), ("{max_ms: 0}", 0.0)],
    )
    def test_how_batches_are_paced(self, load: Load, batch: str, objective: float) -> None:
        pipeline = load(f"{SHOP}  batch: {batch}\n")
        assert pipeline.spec.batch.objective() == timedelta(seconds=objective)

    def test_version_and_kind_may_be_left_out(self, load: Load) -> None:
        assert load(SHOP.split("\n", 2)[2]).name == "shop"

    @pytest.mark.parametrize(
        ("old", "new", "told", "hint"),
        [
            ("kind: Pipeline", "kind: Platform", ("config.invalid_value", "kind", 2), ""),
            ("tailrace/v1", "tailrace/v9", ("config.invalid_value", "apiVersion", 1), ""),
            ("  name: shop", "  name: no way", ("config.invalid_value", "metadata.name", 4), ""),
            ("  name: shop", "  tenant: a", ("config.missing_key", "metadata.name", 3), "name"),
            ("kind:", "knid:", ("config.unknown_key", "knid", 2), "`kind`"),
            ("topic:", "topik:", ("config.unknown_key", "spec.sinks[0].config.topik", 16), "`topic`"),
            ("tables:", "table:", ("config.unknown_key", "spec.source.config.table", 11), "`tables`"),
            ("type: pond", "type: pont", ("config.unknown_type", "spec.source.type", 7), "`pond`"),
            ("type: pond", "type: mysql", ("config.not_yet", "spec.source.type", 7), "postgres"),
            ("type: pipe", "type: pubsub", ("config.not_yet", "spec.sinks[0].type", 13), "kafka"),
            ("type: pipe", "typ: pipe", ("config.missing_key", "spec.sinks[0].type", 13), "type"),
            (
                "source.table",
                "source.tabel",
                ("config.bad_template", "spec.sinks[0].config.topic", 16),
                "source.table",
            ),
            ("${DSN}", "${NOPE}", ("config.missing_variable", "spec.source.config.dsn", 10), "NOPE"),
        ],
    )
    def test_refusals(self, refused: Refused, old: str, new: str, told: tuple[str, str, int], hint: str) -> None:
        problems = {(p.code, p.path, p.line): p for p in refused(SHOP.replace(old, new))}
        assert hint in problems[told].hint
        assert problems[told].file.endswith("pipeline.yaml")

    def test_an_unknown_type_is_one_problem_whatever_its_config_holds(self, refused: Refused) -> None:
        [problem] = refused(SHOP.replace("type: pipe", "type: pubsub").replace("topic:", "stream:"))
        assert problem.path == "spec.sinks[0].type"

    def test_the_type_may_come_from_a_variable(self, load: Load) -> None:
        text = SHOP.replace("- type: pipe\n      config:", "- config:") + "      type: ${KIND:-pipe}\n"
        assert isinstance(load(text).sinks[0], PipeSink)

    def test_sinks_are_needed_and_have_ids_of_their_own(self, refused: Refused) -> None:
        [none] = refused(SHOP.partition("  sinks:")[0] + "  sinks: []\n")
        assert (none.code, none.path) == ("config.invalid_value", "spec.sinks")
        [twice] = refused(SHOP + SHOP[SHOP.index("    - type: pipe") :])
        assert (twice.code, twice.path) == ("config.duplicate_id", "spec.sinks")
        assert "'out'" in twice.message

    @pytest.mark.parametrize(
        "text",
        [
            "batch: {max_events: 0}",
            "batch: {max_events: '5'}",
            "batch: {max_bytes: 0}",
            "batch: {max_ms: 1s}",
            "batch: {latency: -1s}",
            "batch: {latency: 1s, max_ms: 100}",
            "sharding: {count: 65}",
            "sharding: {count: 0}",
            "sharding: {mode: range}",
            "sharding: 4",
            "commit_policy: {mode: some}",
            "commit_policy: {quorum: 1}",
            "commit_policy: {mode: quorum}",
            "commit_policy: {mode: quorum, quorum: 2}",
            "commit_policy: {ack: never}",
            "sink_batch_deadline_secs: 0",
        ],
    )
    def test_values_out_of_bounds(self, refused: Refused, text: str) -> None:
        [problem] = refused(f"{SHOP}  {text}\n")
        assert problem.code == "config.invalid_value"
        assert problem.path.startswith(f"spec.{text.partition(':')[0]}")
        assert problem.line == 17


class TestJournal:
    """Where dead letters may be asked for, and what follows without a word."""

    JOURNAL = "  journal: {enabled: true}\n"
    PICKY = "  processors: [{type: python, inline: 'def process(event): return event'%s}]\n"

    def test_says_what_failures_lead_to(self, load: Load) -> None:
        without, with_one = load(SHOP + self.PICKY % ""), load(SHOP + self.JOURNAL + self.PICKY % "")
        said = load(SHOP + self.JOURNAL + self.PICKY % ", on_error: skip")
        ways = [each.chain(each.sinks[0])[0].on_error for each in (without, with_one, said)]  # type: ignore[attr-defined]
        assert ways == ["fail", "dlq", "skip"]
        bounds = with_one.spec.journal.bounds
        assert (bounds.max_entries, bounds.max_age_s, bounds.overflow) == (10_000, 604_800, "drop_oldest")
        assert with_one.spec.journal.max_event_bytes == 262_144

    @pytest.mark.parametrize(
        "text",
        [
            SHOP + "        on_error: dlq\n",
            SHOP + "  processors: [{type: python, inline: 'def process(event): return event', on_error: dlq}]\n",
            SHOP + "        on_error: dlq\n  journal: {dlq: {max_entries: 5}}\n",
        ],
    )
    def test_is_needed_for_letters(self, refused: Refused, text: str) -> None:
        [problem] = refused(text)
        assert (problem.code, problem.path) == ("config.no_letters", "spec.sinks")
        assert "there is no journal" in problem.message

    def test_tables_have_no_letters(self, refused: Refused, load: Load) -> None:
        lake = "    - {type: delta, config: {id: lake, path: lake, write_mode: append}}\n"
        [problem] = refused(SHOP + lake + self.JOURNAL + self.PICKY % ", on_error: dlq")
        assert problem.code == "config.no_letters" and "'lake'" in problem.message
        found = load(SHOP + lake + self.JOURNAL + self.PICKY % ", columns: {}")
        assert [found.chain(sink)[0].on_error for sink in found.sinks] == ["dlq", "fail"]  # type: ignore[attr-defined]

    def test_what_holds_a_key_is_not_dropped(self, refused: Refused, load: Load) -> None:
        [problem] = refused(SHOP + "  journal: {enabled: true, dlq: {hold_key: true}}\n")
        assert (problem.code, problem.path) == ("config.invalid_value", "spec.journal.dlq")
        kept = load(SHOP + "  journal: {enabled: true, dlq: {hold_key: true, overflow_policy: block}}\n")
        assert kept.spec.journal.dlq.hold_key


class TestPlanned:
    @pytest.mark.parametrize(
        ("line", "path"),
        [
            ("  schema_sensing: {enabled: true}", "spec.schema_sensing"),
            ("  connection_policy: {}", "spec.connection_policy"),
            ("  batch: {max_inflight: 2}", "spec.batch.max_inflight"),
            ("        encoding: {type: avro, url: x}", "spec.sinks[0].config.encoding"),
        ],
    )
    def test_is_refused_by_name(self, refused: Refused, line: str, path: str) -> None:
        [problem] = refused(f"{SHOP}{line}\n")
        assert (problem.code, problem.path, problem.line) == ("config.not_yet", path, 17)
        assert problem.hint.startswith("leave it out")

    @pytest.mark.parametrize("key", ["start_position: earliest"])
    def test_is_refused_in_sources(self, refused: Refused, key: str) -> None:
        [problem] = refused(SHOP.replace("id: shop-db\n", f"id: shop-db\n      {key}\n"))
        assert (problem.code, problem.line) == ("config.not_yet", 10)
        assert problem.path == f"spec.source.config.{key.partition(':')[0]}"

    def test_values_that_change_nothing_are_accepted(self, load: Load) -> None:
        text = SHOP + "        encoding: json\n"
        text += "  processors: []\n  batch: {max_inflight: 1}\n"
        assert load(text) == load(SHOP)

    def test_is_reported_beside_everything_else(self, refused: Refused) -> None:
        text = SHOP.replace("topic:", "topik:").replace("${DSN}", "${NOPE}") + "  connection_policy: {}\n"
        assert [problem.code for problem in refused(text)] == [
            "config.missing_variable",
            "config.missing_key",
            "config.unknown_key",
            "config.not_yet",
        ]


class TestSeveralFiles:
    def test_equal_sources_are_shared(self, write: Write) -> None:
        files = [write(SHOP, "a.yaml"), write(SHOP.replace("name: shop", "name: other"), "b.yaml")]
        first, second = load_pipelines(files, ENVIRON)
        assert first.spec.source == second.spec.source

    def test_unequal_sources_under_one_id_are_refused(self, write: Write) -> None:
        other = SHOP.replace("name: shop", "name: other").replace("[shop.orders,", "[shop.items,")
        with pytest.raises(DocumentError) as caught:
            load_pipelines([write(SHOP, "a.yaml"), write(other, "b.yaml")], ENVIRON)
        [problem] = caught.value.problems
        assert (problem.code, problem.line) == ("config.source_conflict", 9)
        assert "a.yaml" in problem.message
        assert problem.file.endswith("b.yaml")

    def test_a_name_stands_for_one_pipeline(self, write: Write) -> None:
        with pytest.raises(DocumentError) as caught:
            load_pipelines([write(SHOP, "a.yaml"), write(SHOP, "b.yaml")], ENVIRON)
        assert caught.value.code == "config.duplicate_name"

    def test_problems_of_all_files_are_reported(self, write: Write, tmp_path: Path) -> None:
        with pytest.raises(DocumentError) as caught:
            load_pipelines([write("a: [", "a.yaml"), tmp_path / "b.yaml", write("x: 1", "c.yaml")], ENVIRON)
        assert {problem.code for problem in caught.value.problems} == {
            "config.syntax",
            "config.unreadable",
            "config.unknown_key",
            "config.missing_key",
        }


class TestPlatform:
    def test_defaults(self) -> None:
        platform = load_platform(None)
        assert platform == Platform()
        assert platform.data_dir == Path("tailrace-data")
        assert platform.spark.master == "local[*]"
        assert platform.log.retention.max_bytes == 10 * 1024**3
        assert platform.log.retention.max_age == timedelta(days=7)
        assert (platform.log.segment_bytes, platform.log.group_commit) == (
            64_000_000,
            timedelta(milliseconds=50),
        )
        assert platform.tap.memory_bytes == 64 * 1024**2
        assert (platform.retry.initial, platform.retry.max) == (timedelta(seconds=1), timedelta(seconds=60))
        assert platform.ports.spark_ui is None

    def test_everything_said(self, write: Write) -> None:
        text = """\
apiVersion: tailrace/v1
kind: Platform
data_dir: ${HOME}/data
spark: {master: "local[2]", driver_memory: 2g, conf: {spark.ui.showConsoleProgress: "false"}}
log: {retention: {max_bytes: 1GiB, max_age: 1h}, segment_bytes: 8MiB, group_commit: 10ms}
tap: {memory_bytes: 32MiB}
retry: {initial: 100ms, max: 5s, jitter: 0.5}
ports: {spark_ui: "${UI}", metrics: {port: 9464, host: "::", token: "${TOKEN}"}}
"""
        platform = load_platform(write(text), {"HOME": "/home/u", "UI": "4040", "TOKEN": "opensesame"})
        assert platform.data_dir == Path("/home/u/data")
        assert platform.log.retention.max_age == timedelta(hours=1)
        assert platform.spark.conf == {"spark.ui.showConsoleProgress": "false"}
        assert platform.ports.spark_ui == 4040
        assert "opensesame" not in repr(platform.ports)

    def test_the_control_store_may_be_a_database(self, write: Write) -> None:
        url = "postgresql://tailrace:opensesame@db/tailrace?sslmode=verify-full"
        found = load_platform(write('store: {url: "${STORE_URL}"}'), {"STORE_URL": url})
        assert found.store.url is not None
        assert found.store.url.get_secret_value() == url
        assert "opensesame" not in f"{found!r} {found.model_dump_json()}"
        with pytest.raises(DocumentError, match="not the URL of a PostgreSQL database") as caught:
            load_platform(write('store: {url: "${STORE_URL}"}'), {"STORE_URL": "mysql://u:opensesame@db/x"})
        assert "opensesame" not in str(caught.value)

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    def test_metrics_on_loopback_need_no_token(self, write: Write, host: str) -> None:
        metrics = load_platform(write(f"ports: {{metrics: {{port: 9464, host: '{host}'}}}}"), {}).ports.metrics
        assert metrics is not None
        assert (metrics.host, metrics.token) == (host, None)

    @pytest.mark.parametrize(
        ("text", "code", "path"),
        [
            ("datadir: x", "config.unknown_key", "datadir"),
            ("retry: {jitter: 2}", "config.invalid_value", "retry.jitter"),
            ("spark: {conf: {spark.speculation: 'true'}}", "config.invalid_value", "spark.conf"),
            ("spark: {conf: {spark.x: 1}}", "config.invalid_value", "spark.conf.spark.x"),
            ("data_dir: ${NOPE}", "config.missing_variable", "data_dir"),
            ("ports: {metrics: {port: 9464, host: 0.0.0.0}}", "config.invalid_value", "ports.metrics"),
            ("ports: {metrics: {port: 9464, host: db.example.com}}", "config.invalid_value", "ports.metrics"),
            ("ports: {metrics: {port: 9464, token: ''}}", "config.invalid_value", "ports.metrics.token"),
        ],
    )
    def test_refusals(self, write: Write, text: str, code: str, path: str) -> None:
        with pytest.raises(DocumentError) as caught:
            load_platform(write(text), {})
        [problem] = caught.value.problems
        assert (problem.code, problem.path, problem.line) == (code, path, 1)


class TestRegistry:
    def test_third_parties_come_through_entry_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = [
            EntryPoint("barrel", f"{__name__}:PipeSink", "tailrace.sinks"),
            EntryPoint("pipe", f"{__name__}:PondSource", "tailrace.sinks"),
        ]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == SINKS.group else [])
        assert "barrel" in SINKS.names()
        assert SINKS.load("barrel") is PipeSink
        assert SINKS.load("pipe") is PipeSink

    def test_what_cannot_be_loaded_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(SINKS.built_in, "gone", "tailrace.absent:Sink")
        with pytest.raises(SetupError) as missing:
            SINKS.load("gone")
        assert missing.value.code == "setup.connector_missing"
        monkeypatch.setitem(SINKS.built_in, "odd", "pathlib:Path")
        with pytest.raises(SetupError) as odd:
            SINKS.load("odd")
        assert odd.value.code == "setup.bad_connector"

    def test_unknown_types_get_the_nearest_name(self) -> None:
        with pytest.raises(ConfigError) as caught:
            SINKS.check("kafak")
        assert caught.value.hint == "did you mean `kafka`?"


class TestSchema:
    def test_says_what_the_models_say(self, write: Write) -> None:
        schema = json_schema()
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema)
        document = load_pipelines([write(SHOP)], ENVIRON)[0].model_dump(mode="json", by_alias=True)
        assert list(validator.iter_errors(document)) == []
        document["spec"]["sinks"][0]["config"]["encoding"] = "json"
        assert list(validator.iter_errors(document)) == []
        document["spec"]["sinks"][0]["config"]["encoding"] = "avro"
        assert list(validator.iter_errors(document)) != []

    def test_knows_every_connector(self) -> None:
        definitions = json_schema()["$defs"]
        for shelf, entry in ((SOURCES, "SourceEntry"), (SINKS, "SinkEntry")):
            kinds = [kind["properties"]["type"]["const"] for kind in definitions[entry]["oneOf"]]
            assert [*dict.fromkeys(kinds)] == shelf.names()  # one that has modes has an alternative for each

    def test_the_platform_has_one_too(self) -> None:
        schema = json_schema("platform")
        validator = Draft202012Validator(schema)
        assert list(validator.iter_errors(Platform().model_dump(mode="json", by_alias=True))) == []
        assert list(validator.iter_errors({"datadir": "x"})) != []
        assert schema["$defs"]["RetentionBounds"]["properties"]["max_age"]["default"] == "7d"

    def test_every_field_is_described_and_its_examples_are_valid(self) -> None:
        loaded = [shelf.load(name) for shelf in (SOURCES, SINKS) for name in shelf.built_in]
        models = [model for model in loaded if model.__module__ != __name__]
        for model in _reachable([Pipeline, Platform, *models]):
            for name, field in model.model_fields.items():
                nested = isinstance(field.annotation, type) and issubclass(field.annotation, Model)
                assert field.description or nested, f"{model}.{name}"
                for example in field.examples or []:
                    TypeAdapter(field.rebuild_annotation()).validate_python(example)


def _reachable(models: list[type[Model]]) -> list[type[Model]]:
    from tailrace.config.shape import members

    found: list[type[Model]] = []
    while models:
        model = models.pop()
        found.append(model)
        kinds: list[Any] = [field.rebuild_annotation() for field in model.model_fields.values()]
        models += [
            kind
            for whole in kinds
            for kind, _ in members(whole)
            if isinstance(kind, type) and issubclass(kind, Model) and kind not in found
        ]
    return found
