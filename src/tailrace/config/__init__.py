"""Configuration: what every model is made of, and how a document becomes one.

read    YAML with the line of every key                      document
expand  `${VAR}` in values, by the type of the field         expand, template, shape
check   every problem at once, with path, line and hint      problems
hold    frozen models; durations, sizes, secrets, envelopes  model, values, secret, envelope, libpq
"""

from tailrace.config.envelope import (
    CloudEventsEnvelope,
    DebeziumEnvelope,
    Envelope,
    HeliosEnvelope,
    NativeEnvelope,
)
from tailrace.config.libpq import Tls
from tailrace.config.model import Model
from tailrace.config.secret import Dsn, Secret, redact
from tailrace.config.template import POSITION_FIELDS, Reference, Script, Template, literal_of, parse_template
from tailrace.config.values import GIB, KIB, MIB, ByteSize, Duration

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "POSITION_FIELDS",
    "ByteSize",
    "CloudEventsEnvelope",
    "DebeziumEnvelope",
    "Dsn",
    "Duration",
    "Envelope",
    "HeliosEnvelope",
    "Model",
    "NativeEnvelope",
    "Reference",
    "Script",
    "Secret",
    "Template",
    "Tls",
    "literal_of",
    "parse_template",
    "redact",
]
