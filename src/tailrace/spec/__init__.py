"""The documents a user writes: pipelines, and the platform they run on."""

from tailrace.spec.journal import DeadLetters, JournalSettings
from tailrace.spec.load import load_pipelines, load_platform, read_pipeline
from tailrace.spec.pipeline import Batch, Metadata, Pipeline, PipelineSpec, Sharding, SinkEntry, SourceEntry
from tailrace.spec.platform import LogSettings, Platform, Ports, RetentionBounds, Retry, SparkSettings, TapSettings
from tailrace.spec.schema import json_schema

__all__ = [
    "Batch",
    "DeadLetters",
    "JournalSettings",
    "LogSettings",
    "Metadata",
    "Pipeline",
    "PipelineSpec",
    "Platform",
    "Ports",
    "RetentionBounds",
    "Retry",
    "Sharding",
    "SinkEntry",
    "SourceEntry",
    "SparkSettings",
    "TapSettings",
    "json_schema",
    "load_pipelines",
    "load_platform",
    "read_pipeline",
]
