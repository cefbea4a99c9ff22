"""The documents' JSON Schema, for editors and forms. It says only what the models say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tailrace.config import Model
from tailrace.config.values import show_duration
from tailrace.spec.pipeline import Pipeline
from tailrace.spec.platform import Platform

DOCUMENTS: dict[str, type[Model]] = {"pipeline": Pipeline, "platform": Platform}


def json_schema(document: str = "pipeline") -> dict[str, Any]:
    """The JSON Schema (2020-12) of a `pipeline` with every connector there is, or of the `platform`."""
    schema = DOCUMENTS[document].model_json_schema(schema_generator=_Generator)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _Generator(GenerateJsonSchema):
    """Shows default durations as documents write them."""

    def encode_default(self, dft: Any) -> Any:
        return show_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)
