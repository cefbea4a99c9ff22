"""Connectors and processors in a document: `type` says which, and its model reads the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tailrace.config import Model
from tailrace.contracts.processing import Processor
from tailrace.errors import ConfigError
from tailrace.registry import PROCESSORS, Shelf


class ConnectorEntry(Model):
    """`{type, config}`: `type` chooses the connector, whose model then reads `config`."""

    shelf: ClassVar[Shelf]
    planned: ClassVar[Mapping[str, Mapping[str, tuple[object, ...]]]] = {}
    """By type: keys that are planned, with the values that are accepted today."""

    type: Annotated[str, Field(description="The connector.")]
    config: Annotated[SerializeAsAny[Model], Field(description="The connector's own settings.")]

    @classmethod
    def kind_of(cls, key: str, data: Mapping[str, object]) -> Any:
        if key != "config":
            return super().kind_of(key, data)
        name = data.get("type")
        return _model(cls.shelf, name, data.get("config")) if isinstance(name, str) and cls.shelf.has(name) else None

    @field_validator("type")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            cls.shelf.check(name)
        except ConfigError as error:
            context = {"message": error.message, "hint": error.hint}
            raise PydanticCustomError(error.code, "{message}", context) from None
        return name

    @field_validator("config", mode="wrap")
    @classmethod
    def _by_type(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Model:
        if "type" not in info.data:
            return Model()  # `type` is already refused, and nothing can be said about `config` without it.
        connector = _model(cls.shelf, info.data["type"], value)
        return connector.from_document(value) if info.mode == "json" else connector.model_validate(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """One alternative for each connector on the shelf, with the planned keys that are accepted today."""
        plain = handler.resolve_ref_schema(handler(core))
        alternatives = []
        models = [(name, each) for name in cls.shelf.names() for each in cls.shelf.load(name).alternatives()]
        for name, model in models:
            settings = handler.resolve_ref_schema(handler(model.__pydantic_core_schema__))
            planned = {key: {"enum": list(values)} for key, values in cls.planned.get(name, {}).items() if values}
            settings = {**settings, "properties": planned | settings["properties"]}
            kind = {**plain["properties"]["type"], "const": name}
            alternatives.append({**plain, "title": name, "properties": {"type": kind, "config": settings}})
        return {"title": cls.__name__, "description": plain["description"], "oneOf": alternatives}


def _model(shelf: Shelf, name: str, config: object) -> type[Model]:
    """The model that reads a connector's `config`."""
    return shelf.load(name).chosen(config)


class ProcessorEntry(ConnectorEntry):
    """A step between the log and a sink. Its own keys stand beside `type`."""

    shelf = PROCESSORS

    config: Annotated[SerializeAsAny[Processor], Field(description="The processor's own settings.")]

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, data: Any) -> Any:
        """`{type, …}` as `{type, config: {…}}`, with the type for an id where there is none."""
        if not isinstance(data, Mapping) or isinstance(data.get("config"), Processor):
            return data
        own = {key: value for key, value in data.items() if key != "type"}
        named = {"type": data["type"]} if "type" in data else {}
        return {**named, "config": {"id": data.get("type"), **own}}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """One alternative for each processor on the shelf."""
        plain = handler.resolve_ref_schema(handler(core))
        alternatives = []
        for name in cls.shelf.names():
            settings = handler.resolve_ref_schema(handler(cls.shelf.load(name).__pydantic_core_schema__))
            kind = {**plain["properties"]["type"], "const": name}
            required = ["type", *settings.get("required", [])]
            properties = {"type": kind, **settings["properties"]}
            alternatives.append({**settings, "title": name, "properties": properties, "required": required})
        return {"title": cls.__name__, "description": plain["description"], "oneOf": alternatives}

    @classmethod
    def kind_of(cls, key: str, data: Mapping[str, object]) -> Any:
        if key == "type":
            return str
        model = super().kind_of("config", data)
        return None if model is None else model.kind_of(key, data)

    @classmethod
    def keys_of(cls, data: Mapping[str, object]) -> list[str]:
        model = super().kind_of("config", data)
        return ["type"] if model is None else ["type", *model.document_keys()]
