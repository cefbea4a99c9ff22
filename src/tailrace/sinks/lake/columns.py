"""Which type a column gets in a table, and how JSON text becomes a value of it: the same value or none (Law 6)."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from tailrace.jvm import JSON_LIMITS
from tailrace.kinds import Kind, KindName

MAX_DIGITS = 38
FLOATS = (DoubleType, FloatType)

TEXT = StringType()

_TYPES: dict[KindName, DataType] = {
    "bool": BooleanType(),
    "int8": IntegerType(),
    "int16": IntegerType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "uint8": IntegerType(),
    "uint16": IntegerType(),
    "uint32": LongType(),
    "uint64": DecimalType(20, 0),
    "float32": FloatType(),
    "float64": DoubleType(),
    "bytes": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampNTZType(),
    "timestamp_tz": TimestampType(),
}
"""Kinds that have a type of their own; decimals and arrays have more than one, all others are text."""


def is_document(kind: Kind) -> bool:
    """Whether values are JSON, each the very text it has."""
    return kind.name == "json" and not kind.domain


def is_verbatim(kind: Kind) -> bool:
    """Whether values may be JSON other than strings, whose text must stay as it is: documents, domains, arrays of
    documents, and those of floats, whose negative zeros a parser of JSON takes for integers."""
    if kind.domain or kind.element is None:
        return kind.domain or is_document(kind)
    return is_document(kind.element) or isinstance(type_of(kind.element, variant=False), FLOATS)


def type_of(kind: Kind, *, variant: bool) -> DataType:
    """The type for a column of the source: exact, or text where no type holds all of its values."""
    if kind.domain:
        return TEXT
    if kind.element is not None:  # a parser would round the digits of documents
        return TEXT if is_document(kind.element) else ArrayType(type_of(kind.element, variant=False))
    if kind.name == "json":
        return VariantType() if variant else TEXT
    if kind.precision is not None:
        return _decimal(kind.precision, kind.scale or 0)
    return _TYPES.get(kind.name, TEXT)


def _decimal(precision: int, scale: int) -> DataType:
    precision = max(precision, scale)
    return DecimalType(precision, scale) if scale >= 0 and precision <= MAX_DIGITS else TEXT


def wider(target: DataType, wanted: DataType) -> bool:
    """Whether a column of `target` can become `wanted` without touching a value."""
    match target, wanted:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return target.scale == wanted.scale and target.precision < wanted.precision
        case _:
            return False


def holds(target: DataType, wanted: DataType) -> bool:
    """Whether a column of `target` holds every value of `wanted` as it is."""
    return target == wanted or isinstance(target, StringType) or wider(wanted, target)


def value(text: str, target: DataType) -> str:
    """SQL: the value that JSON text stands for; null where it is null, and where it does not fit."""
    match target:
        case StringType():
            return text
        case DateType():
            return f"if(length({text}) = 10, {_cast(text, target)}, null)"
        case TimestampType():
            return f"if(endswith({text}, 'Z'), {_cast(text, target)}, null)"
        case TimestampNTZType():
            return f"if(endswith({text}, 'Z'), null, {_cast(text, target)})"
        case DecimalType():
            return _exact_decimal(text, target)
        case BinaryType():
            return f"try_to_binary({text}, 'base64')"
        case VariantType():
            return f"try_parse_json({text})"
        case ArrayType():
            return _array(text, target.elementType)
        case _:
            return _cast(text, target)


def unfit(text: str, target: DataType) -> str:
    """SQL: whether there is a value and the type does not hold it."""
    return f"({text} is not null and {value(text, target)} is null)"


def text(found: str, target: DataType) -> str:
    """SQL: JSON text that `value` reads back as the same value."""
    match target:
        case StringType():
            return found
        case BinaryType():
            return f"base64({found})"
        case TimestampType():
            return f"""date_format({found}, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")"""
        case TimestampNTZType():
            return f"""date_format({found}, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")"""
        case VariantType():
            return f"to_json({found})"
        case ArrayType():
            return f"to_json(transform({found}, e -> {text('e', target.elementType)}))"
        case _:
            return f"cast({found} as string)"


def _cast(text: str, target: DataType) -> str:
    return f"try_cast({text} as {target.simpleString()})"


def _exact_decimal(text: str, target: DecimalType) -> str:
    """A cast alone would round. Few digits are found quickly, zeros behind them by a closer look."""
    found = _cast(text, target)
    few = f"instr({text}, '.') = 0 or length({text}) - instr({text}, '.') <= {target.scale}"
    digits = f"length(regexp_extract({text}, '[.]([0-9]*?)0*$', 1))"
    plain = f"instr({text}, 'e') = 0 and instr({text}, 'E') = 0"
    return f"if(({plain}) and ({few} or {digits} <= {target.scale}), {found}, null)"


_LISTED_LIMITS = ", ".join(f"'{name}', '{limit}'" for name, limit in JSON_LIMITS.items())
_NEGATIVE_ZERO = r"'(?<=[\\[, ])-0(?=[\\], ])'"
"""SQL: a pattern. In an array of floats nothing else can stand like this."""


def _array(text: str, element: DataType) -> str:
    """Null where an element does not fit, as in an array with more dimensions than the type has."""
    signed = f"regexp_replace({text}, {_NEGATIVE_ZERO}, '-0.0')" if isinstance(element, FLOATS) else text
    texts = f"from_json({signed}, 'array<string>', map({_LISTED_LIMITS}))"
    if isinstance(element, StringType):
        return f"if(startswith({text}, '[['), null, {texts})"
    values = f"transform({texts}, e -> {value('e', element)})"
    return f"if(exists({texts}, e -> {unfit('e', element)}), null, {values})"
