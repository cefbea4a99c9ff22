"""What a transform is told about columns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model
from tailrace.processors.tables import Tables
from tailrace.processors.transform.masks import Hash, Mask

Name = Annotated[str, Field(min_length=1)]


class Rename(Model):
    """Other names for columns."""

    columns: Annotated[
        dict[Name, Name],
        Field(min_length=1, description="From the old name to the new one.", examples=[{"qty": "quantity"}]),
    ]
    tables: Tables = ()


class Drop(Model):
    """Columns that go. Those of a key cannot."""

    columns: Annotated[
        tuple[Name, ...], Field(min_length=1, description="Columns; dots lead into JSON columns.", examples=[["notes"]])
    ]
    tables: Tables = ()


class Keep(Model):
    """The only columns that stay, with those of the key."""

    columns: Annotated[tuple[Name, ...], Field(min_length=1, description="Columns.", examples=[["id", "status"]])]
    tables: Tables = ()


class MappedField(Model):
    """What becomes of one column."""

    source_column: Annotated[Name, Field(description="The column.")]
    sink_column: Annotated[Name | None, Field(description="Its new name. Absent: the one it has.")] = None
    enabled: Annotated[bool, Field(description="`false`: the column goes.")] = True

    @model_validator(mode="after")
    def _says_one_thing(self) -> MappedField:
        if not self.enabled and self.sink_column is not None:
            hint = "leave `sink_column` out, or `enabled: false`"
            raise PydanticCustomError("config.invalid_value", "a column that goes has no other name", {"hint": hint})
        return self


class FieldMapping(Model):
    """A list of columns with their new names, or without a place behind it; columns that it does not name stay."""

    columns: Annotated[
        tuple[MappedField, ...],
        Field(
            min_length=1,
            description="What becomes of columns.",
            examples=[[{"source_column": "a", "sink_column": "b"}]],
        ),
    ]
    tables: Tables = ()


class Metadata(Model):
    """A word about every change."""

    key: Annotated[Name, Field(description="Its name.", examples=["datacenter"])]
    value: Annotated[str, Field(description="What it says.", examples=["eu-west-2"])]
    as_: Annotated[
        Literal["header", "column"],
        Field(alias="as", description="A member of the change's `headers`, or a column of its rows."),
    ] = "header"
    tables: Tables = ()

    @model_validator(mode="after")
    def _is_not_ours(self) -> Metadata:
        if self.as_ == "header" and (self.key in ("old_key", "new_key") or self.key.startswith("tailrace.")):
            context = {"key": self.key, "hint": "use another name"}
            raise PydanticCustomError("config.invalid_value", "the header '{key}' is Tailrace's own", context)
        return self


class Edits(Model):
    """All that a transform is told."""

    mask: Annotated[tuple[Mask, ...], Field(description="Columns to hide.")] = ()
    hash: Annotated[tuple[Hash, ...], Field(description="Columns to replace by hashes.")] = ()
    drop: Annotated[tuple[Drop, ...], Field(description="Columns that go.")] = ()
    keep: Annotated[tuple[Keep, ...], Field(description="The only columns that stay.")] = ()
    rename: Annotated[tuple[Rename, ...], Field(description="Columns that get another name.")] = ()
    field_mapping: Annotated[
        tuple[FieldMapping, ...], Field(description="New names and dropped columns, as a list of columns.")
    ] = ()
    add_metadata: Annotated[tuple[Metadata, ...], Field(description="Words about every change.")] = ()

    def hiding(self) -> tuple[Mask | Hash, ...]:
        """What hides values."""
        return (*self.mask, *self.hash)
