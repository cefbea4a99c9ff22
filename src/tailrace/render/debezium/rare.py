"""Values that the kernel leaves to Python: of rare types, and the rare ones of others (infinity, BC, many digits).

Pure functions from JSON text to JSON text. What is no value of its column's type is a `ValueError`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal

from tailrace.render.debezium.codes import Code
from tailrace.render.debezium.semantics import Encoding

DAYS_IN_MONTH = 30.4375
_DAY, _SECOND = 86_400_000_000, 1_000_000
_SPECIAL = ("NaN", "Infinity", "-Infinity")
_DATES = {"infinity": -2_147_472_692, "-infinity": -2_147_472_691}
_MOMENTS = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""What PostgreSQL's driver and Debezium together make of infinity."""
_DATE = re.compile(r"(\d+)-(\d\d)-(\d\d)( BC)?")
_MOMENT = re.compile(
    r"(?P<date>\d+-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?(?:Z|\+00)?(?P<era> BC)?"
)
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_ZONED_CLOCK = re.compile(
    r"(?P<clock>[\d:.]+)(?P<sign>[+-])(?P<hours>\d\d)(?::(?P<minutes>\d\d))?(?::(?P<seconds>\d\d))?"
)
_AMOUNT = re.compile(r"([+-]?\d+) (year|mon|day)s?")
_TIME_OF_INTERVAL = re.compile(r"(?:^| )([+-]?)(\d+):(\d\d):(\d\d(?:\.\d+)?)$")
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)')


def encoded(encoding: Encoding, text: str) -> str:
    """A value, as JSON text, as Debezium writes it."""
    if text == "null":
        return text
    if encoding.array and text.startswith("["):
        return _listed(encoding, json.loads(text, parse_float=str, parse_int=str))
    return _scalar(encoding, json.loads(text) if text.startswith('"') else text)


def _listed(encoding: Encoding, elements: list[object]) -> str:
    parts = (_listed(encoding, e) if isinstance(e, list) else _element(encoding, e) for e in elements)
    return "[" + ",".join(parts) + "]"


def _element(encoding: Encoding, element: object) -> str:
    return "null" if element is None else _scalar(encoding, str(element))


def _scalar(encoding: Encoding, value: str) -> str:
    match encoding.code:
        case Code.DECIMAL:
            return "null" if value in _SPECIAL else _unscaled(Decimal(value), encoding.detail)
        case Code.VARIABLE_DECIMAL:
            return "null" if value in _SPECIAL else _variable(Decimal(value))
        case Code.DATE:
            return str(_DATES[value] if value in _DATES else _date(value))
        case Code.MICROS | Code.MILLIS:
            micros = _MOMENTS[value] if value in _MOMENTS else _moment(value)
            return str(micros // 1000 if encoding.code is Code.MILLIS else _word(micros))
        case Code.ZONED:
            return json.dumps(value if value in _MOMENTS else _zoned(value, encoding.detail))
        case Code.RARE:
            return _BY_NAME[encoding.rare](value)
        case _:
            raise ValueError("a value has another form than its type")


def _variable(number: Decimal) -> str:
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = 0
    while zeros < min(-exponent, len(digits) - 1) and digits[-1 - zeros] == 0:
        zeros += 1
    scale = 0 if number == 0 else max(-exponent - zeros, 0)
    return f'{{"scale":{scale},"value":{_unscaled(number, scale)}}}'


def _unscaled(number: Decimal, scale: int) -> str:
    """Base64 of the number times ten to the power of `scale`, in the fewest bytes of two's complement."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    whole = _integer("".join(map(str, digits)))
    whole, rest = (whole * 10**shift, 0) if shift >= 0 else divmod(whole, 10**-shift)
    if rest:
        raise ValueError("a number has more digits than its column")
    whole = -whole if sign else whole
    size = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
    return _base64(whole.to_bytes(size, "big", signed=True))


def _integer(digits: str) -> int:
    """Of any length: Python refuses to read more than some thousands at once."""
    if len(digits) <= 4000:  # noqa: PLR2004
        return int(digits or "0")
    half = len(digits) // 2
    shift: int = 10**half
    return _integer(digits[:-half]) * shift + _integer(digits[-half:])


def _base64(data: bytes) -> str:
    return json.dumps(base64.b64encode(data).decode())


def _year(text: str, before_christ: bool) -> int:
    return 1 - int(text) if before_christ else int(text)


def _date(value: str) -> int:
    found = _matched(_DATE, value)
    return _days(_year(found[1], found[4] is not None), int(found[2]), int(found[3]))


def _days(year: int, month: int, day: int) -> int:
    """Since 1970, in the proleptic Gregorian calendar."""
    year, month = (year - 1, month + 9) if month <= 2 else (year, month - 3)  # noqa: PLR2004
    era, of_era = divmod(year, 400)
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 + day - 719_469


def clock(value: str) -> int:
    found = _matched(_CLOCK, value)
    hours, minutes, seconds = (int(found[n]) for n in (1, 2, 3))
    return ((hours * 60 + minutes) * 60 + seconds) * _SECOND + int((found[4] or "0").ljust(6, "0"))


def _moment(value: str) -> int:
    found = _matched(_MOMENT, value)
    at = found["clock"] + "." + (found["fraction"] or "0")
    return _date(found["date"] + (found["era"] or "")) * _DAY + clock(at)


def _word(number: int) -> int:
    """As 64 bits hold it: Debezium lets larger ones overflow."""
    return (number + 2**63) % 2**64 - 2**63


def _zoned(value: str, digits: int) -> str:
    found = _matched(_MOMENT, value)
    year, _, rest = found["date"].partition("-")
    fraction = "." + (found["fraction"] or "").ljust(digits, "0")[:digits] if digits else ""
    return f"{_iso_year(_year(year, found['era'] is not None))}-{rest}T{found['clock']}{fraction}Z"


def _iso_year(year: int) -> str:
    """With a sign where it is not between 0 and 9999."""
    if year < 0:
        return f"-{-year:04}"
    return f"{year:04}" if year <= 9999 else f"+{year}"  # noqa: PLR2004


def _timetz(value: str) -> str:
    return _utc(value, fraction=True)


def _utc(value: str, *, fraction: bool) -> str:
    found = _matched(_ZONED_CLOCK, value)
    hours, minutes, seconds = (int(found[name] or 0) for name in ("hours", "minutes", "seconds"))
    east = ((hours * 60 + minutes) * 60 + seconds) * _SECOND
    at = (clock(found["clock"]) + (-east if found["sign"] == "+" else east)) % _DAY
    whole, micros = divmod(at, _SECOND)
    tail = f".{micros:06}".rstrip("0") if fraction and micros else ""
    return json.dumps(f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{tail}Z")


def _interval(value: str) -> str:
    """Microseconds, of months with an average length: in the floating-point numbers that Debezium counts in."""
    if value in _MOMENTS:
        return "0"
    amounts = {unit: int(number) for number, unit in _AMOUNT.findall(value)}
    clock = _TIME_OF_INTERVAL.search(value)
    if not amounts and clock is None:
        raise ValueError("not an interval")
    sign, hours, minutes, seconds = clock.groups() if clock else ("", "0", "0", "0")
    turn = -1 if sign == "-" else 1
    days = (amounts.get("year", 0) * 12 + amounts.get("mon", 0)) * DAYS_IN_MONTH + amounts.get("day", 0)
    total = (((days * 24 + turn * int(hours)) * 60) + turn * int(minutes)) * 60 + turn * float(seconds)
    return str(max(-(2**63), min(2**63 - 1, math.trunc(total * 1e6))))


def _money(value: str) -> str:
    negative = "-" in value or "(" in value
    cents = "".join(re.findall(r"\d", value))
    return _unscaled(Decimal(f"{'-' if negative else ''}{cents}E-2"), 2)


def _bit(value: str) -> str:
    return "true" if value == "1" else "false"


def _bits(value: str) -> str:
    """Lowest byte first, without bytes that say nothing."""
    number = int(value or "0", 2)
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def _point(value: str) -> str:
    x, y = (float(part) for part in value.strip("()").split(","))
    well_known = struct.pack("<BIdd", 1, 1, x, y)
    return f'{{"x":{double(x)},"y":{double(y)},"wkb":{_base64(well_known)},"srid":null}}'


def double(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _vector(value: str) -> str:
    return "[" + ",".join(double(float(part)) for part in value.strip("[]").split(",") if part) + "]"


def _sparse(value: str) -> str:
    """`{1:1,3:2.5}/5`."""
    found, _, dimensions = value.rpartition("/")
    pairs = (part.split(":") for part in found.strip("{}").split(",") if part)
    return (
        f'{{"dimensions":{int(dimensions)},"vector":['
        + ",".join(f"[{int(n)},{double(float(v))}]" for n, v in pairs)
        + "]}"
    )


def _hstore(value: str) -> str:
    """A JSON object as a string, its members in the order that a Java `HashMap` has them in."""
    pairs = {_plain(name): None if found is None else _plain(found) for name, found in _pairs(value)}
    size = 16
    while len(pairs) > size * 3 // 4:
        size *= 2
    ordered = sorted(pairs, key=lambda name: _java_hash(name) & (size - 1))
    text = json.dumps({name: pairs[name] for name in ordered}, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(text, ensure_ascii=False)


def _pairs(value: str) -> list[tuple[str, str | None]]:
    return [(found[1], found[2]) for found in _PAIR.finditer(value)]


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _java_hash(text: str) -> int:
    """`String.hashCode`, spread as `HashMap` does."""
    units = struct.unpack(f"<{len(text.encode('utf-16-le')) // 2}H", text.encode("utf-16-le"))
    number = 0
    for unit in units:
        number = (number * 31 + unit) & 0xFFFFFFFF
    return number ^ (number >> 16)


def _matched(pattern: re.Pattern[str], value: str) -> re.Match[str]:
    found = pattern.fullmatch(value)
    if found is None:
        raise ValueError("a value has another form than its type")
    return found


_BY_NAME: dict[str, Callable[[str], str]] = {
    "bit": _bit,
    "bits": _bits,
    "emptied": lambda value: "[]" if value else "null",
    "hstore": _hstore,
    "interval": _interval,
    "money": _money,
    "nothing": lambda _: "null",
    "point": _point,
    "sparsevec": _sparse,
    "timetz": _timetz,
    "timetz_element": lambda value: _utc(value, fraction=False),
    "vector": _vector,
}
