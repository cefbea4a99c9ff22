"""Which connectors there are. A connector costs one line here; third parties use entry points.

Classes are named, not imported, so that a pipeline loads only the libraries it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from tailrace.config import Model
from tailrace.config.problems import nearest
from tailrace.errors import ConfigError, SetupError


@dataclass(frozen=True)
class Shelf:
    """The connectors of one kind, by the `type` that documents use.

    `built_in` maps a type to `module:Class`; `group` is the entry-point group of third parties, which cannot
    replace a built-in; `later` are types that are planned and refused by name until then.
    """

    kind: str
    group: str
    built_in: dict[str, str]
    later: frozenset[str]

    def names(self) -> list[str]:
        """Every type that `load` knows."""
        return sorted({*self.built_in, *(point.name for point in entry_points(group=self.group))})

    def has(self, name: str) -> bool:
        """Whether `load` knows the type. Installed packages are looked through only for one that is not built in: that
        takes milliseconds."""
        return name in self.built_in or name in self.names()

    def check(self, name: str) -> None:
        """Raise `ConfigError` unless `load` knows the type."""
        if self.has(name):
            return
        if name in self.later:
            message = f"the {self.kind} type '{name}' is planned and not there yet"
            raise ConfigError("config.not_yet", message, hint="use one of: " + ", ".join(self.names()))
        raise ConfigError("config.unknown_type", f"unknown {self.kind} type '{name}'", hint=nearest(name, self.names()))

    def load(self, name: str) -> type[Model]:
        """The model of a type. Raises `SetupError` when it is installed without what it needs."""
        self.check(name)
        point = self._point(name)
        try:
            found = getattr(import_module(point.module), point.attr)
        except (ImportError, AttributeError) as error:
            raise SetupError(
                "setup.connector_missing",
                f"the {self.kind} '{name}' cannot be loaded: {error}",
                hint="install the package it needs, or reinstall tailrace",
            ) from error
        if not (isinstance(found, type) and issubclass(found, Model) and "id" in found.model_fields):
            message = f"the {self.kind} '{name}' is not a tailrace Model with an `id`"
            raise SetupError("setup.bad_connector", message, hint=f"check the entry point {point.value}")
        return found

    def _point(self, name: str) -> EntryPoint:
        if name in self.built_in:
            return EntryPoint(name, self.built_in[name], self.group)
        return next(point for point in entry_points(group=self.group) if point.name == name)


SOURCES = Shelf(
    "source",
    "tailrace.sources",
    {"postgres": "tailrace.capture.postgres:PostgresSource"},
    frozenset({"mysql", "mariadb", "mongodb", "sqlserver", "rest"}),
)

SINKS = Shelf(
    "sink",
    "tailrace.sinks",
    {
        "console": "tailrace.sinks.console:ConsoleSink",
        "delta": "tailrace.sinks.delta:DeltaSink",
        "elasticsearch": "tailrace.sinks.opensearch:ElasticsearchSink",
        "file": "tailrace.sinks.file:FileSink",
        "http": "tailrace.sinks.http:HttpSink",
        "iceberg": "tailrace.sinks.iceberg:IcebergSink",
        "kafka": "tailrace.sinks.kafka:KafkaSink",
        "kinesis": "tailrace.sinks.kinesis:KinesisSink",
        "nats": "tailrace.sinks.nats:NatsSink",
        "opensearch": "tailrace.sinks.opensearch:OpenSearchSink",
        "postgres": "tailrace.sinks.postgres:PostgresSink",
        "redis": "tailrace.sinks.redis:RedisSink",
        "s3": "tailrace.sinks.file.s3:S3Sink",
        "webhook": "tailrace.sinks.http:HttpSink",
    },
    frozenset({"clickhouse", "pubsub"}),
)

ENCODERS = Shelf(
    "encoder",
    "tailrace.encoders",
    {"debezium": "tailrace.render.debezium:DebeziumValues"},
    frozenset(),
)
"""Steps at the end of a chain that envelopes ask for, and documents do not."""

PROCESSORS = Shelf(
    "processor",
    "tailrace.processors",
    {
        "filter": "tailrace.processors.filter:FilterProcessor",
        "flatten": "tailrace.processors.flatten:FlattenProcessor",
        "javascript": "tailrace.processors.javascript:JavaScriptProcessor",
        "outbox": "tailrace.processors.outbox:OutboxProcessor",
        "python": "tailrace.processors.python:PythonProcessor",
        "route": "tailrace.processors.route:RouteProcessor",
        "sql": "tailrace.processors.sql:SqlProcessor",
        "synthetic": "tailrace.processors.synthetic:SyntheticProcessor",
        "transform": "tailrace.processors.transform:TransformProcessor",
    },
    frozenset(),
)
