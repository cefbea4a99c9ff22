"""The ground every configuration model stands on: frozen, picklable, and deaf to keys it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Configuration, its documentation and its JSON schema at once.

    A value is never shown in a validation error, because it may be a secret. Python callers may pass what
    converts without loss (a list for a tuple); documents go through `from_document`, which is strict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @classmethod
    def from_document(cls, data: object) -> Self:
        """Validate parsed YAML: numbers are not texts, texts are not numbers, lists may fill tuples."""
        return cls.model_validate_json(json.dumps(data), strict=True)

    @classmethod
    def alternatives(cls) -> tuple[type[Model], ...]:
        """Itself; of a model whose `mode` decides which other keys there are, one model for each mode."""
        return (cls,)

    @classmethod
    def chosen(cls, data: object) -> type[Model]:
        """The alternative that reads this mapping; the first where its `mode` is none of theirs."""
        models = cls.alternatives()
        if isinstance(data, Model) and type(data) in models:
            return type(data)
        mode = data.get("mode") if isinstance(data, Mapping) else None
        fitting = (
            each for each in models if len(models) > 1 and mode in get_args(each.model_fields["mode"].annotation)
        )
        return next(fitting, models[0])

    @classmethod
    def kind_of(cls, key: str, data: Mapping[str, object]) -> Any:
        """The annotation of `key` as a document spells it, or None. `data` holds its siblings, for models
        in which one key decides the type of another."""
        for name, field in cls.model_fields.items():
            if key == (field.alias or name):
                return field.rebuild_annotation()
        return None

    @classmethod
    def document_keys(cls) -> list[str]:
        """The keys of this model as a document spells them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def keys_of(cls, data: Mapping[str, object]) -> list[str]:
        """Those that this mapping may have, for models in which one key decides the others."""
        return cls.document_keys()
