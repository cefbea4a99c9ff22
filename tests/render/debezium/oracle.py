"""Random values of each type: as the tap writes them, and what Debezium makes of them, worked out slowly."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

Value = tuple[str, Any]
"""JSON text in an image, and the value in Debezium's event."""
Made = Callable[[random.Random], Value]

EPOCH, MOMENT = date(1970, 1, 1), datetime(1970, 1, 1)
LETTERS = string.printable + 'žluťoučký "\\\x7f\u2028🚰'


def unscaled(number: Decimal, scale: int) -> str:
    whole = int(number.scaleb(scale))
    size = 1
    while not -(256**size) // 2 <= whole < 256**size // 2:
        size += 1
    return base64.b64encode(whole.to_bytes(size, "big", signed=True)).decode()


def integer(bits: int) -> Made:
    def make(chance: random.Random) -> Value:
        number = chance.choice([0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), chance.randrange(-(10**4), 10**4)])
        return str(number), number

    return make


def decimal(precision: int, scale: int) -> Made:
    def make(chance: random.Random) -> Value:
        digits = chance.randrange(10 ** chance.randint(1, precision))
        number = Decimal(digits * chance.choice([1, -1])).scaleb(-scale)
        return json.dumps(f"{number:f}"), unscaled(number, scale)

    return make


def any_decimal(chance: random.Random) -> Value:
    if chance.random() < 0.05:
        return json.dumps(chance.choice(["NaN", "Infinity", "-Infinity"])), None
    scale = chance.randint(0, 30)
    number = Decimal(chance.randrange(10 ** chance.randint(1, 60)) * chance.choice([1, -1, 100])).scaleb(-scale)
    text = f"{number:f}"
    short = text.rstrip("0").rstrip(".") if "." in text else text
    kept = Decimal(short)
    exponent = kept.as_tuple().exponent
    assert isinstance(exponent, int)
    return json.dumps(text), {"scale": -exponent, "value": unscaled(kept, -exponent)}


def day(chance: random.Random) -> Value:
    found = date.fromordinal(chance.randint(1, date.max.toordinal()))
    return json.dumps(found.isoformat()), (found - EPOCH).days


def moment(digits: int, *, zoned: bool = False) -> Made:
    step = 10 ** (6 - digits)

    def make(chance: random.Random) -> Value:
        micros = chance.randrange(-62_135_596_800, 253_402_300_800) * 10**6 + chance.randrange(10**6 // step) * step
        found = MOMENT + timedelta(microseconds=micros)
        text = f"{found.isoformat(timespec='microseconds')}"
        if not zoned:
            return json.dumps(text), micros // 1000 if digits <= 3 else micros
        kept = text[: 20 + digits] if digits else text[:19]
        return json.dumps(text + "Z"), kept + "Z"

    return make


def time(digits: int) -> Made:
    def make(chance: random.Random) -> Value:
        micros = chance.randrange(86_400 * 10**6) // 10 ** (6 - digits) * 10 ** (6 - digits)
        text = (MOMENT + timedelta(microseconds=micros)).time().isoformat(timespec="microseconds")
        return json.dumps(text), micros // 1000 if digits <= 3 else micros

    return make


def timetz(chance: random.Random) -> Value:
    minutes = chance.randrange(-15 * 60, 15 * 60)
    micros = chance.choice([0, 500_000, chance.randrange(10**6)])
    local = datetime(2000, 1, 1, chance.randrange(24), chance.randrange(60), chance.randrange(60), micros)
    sign, away = "-" if minutes < 0 else "+", abs(minutes)
    text = f"{local.time().isoformat(timespec='microseconds')}{sign}{away // 60:02}:{away % 60:02}"
    utc = (local.replace(tzinfo=UTC) - timedelta(minutes=minutes)).time()
    shown = utc.isoformat(timespec="microseconds").rstrip("0").rstrip(".") if micros else utc.isoformat()
    return json.dumps(text), shown + "Z"


def text(chance: random.Random) -> Value:
    found = "".join(chance.choices(LETTERS, k=chance.choice([0, 1, 7, 40])))
    return json.dumps(found, ensure_ascii=chance.random() < 0.3), found


def document(chance: random.Random) -> Value:
    inner = [{"a": 1.5, 'q"': ["\\", "\n"]}, [1, {"b": None}], "s\"'\\ž", 12, True, {}, []]
    found = json.dumps(chance.choice(inner), ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 1]))
    found = found.replace("\n", chance.choice([" ", "\t"]))
    return found, found


def data(chance: random.Random) -> Value:
    found = base64.b64encode(chance.randbytes(chance.choice([0, 1, 2, 3, 50]))).decode()
    return json.dumps(found), found


def bits(chance: random.Random) -> Value:
    found = "".join(chance.choices("01", k=chance.randint(2, 70)))
    whole = int(found, 2)
    made = whole.to_bytes((whole.bit_length() + 7) // 8, "little")
    return json.dumps(found), base64.b64encode(made).decode()


def real(chance: random.Random) -> Value:
    if chance.random() < 0.1:
        found = chance.choice(["NaN", "Infinity", "-Infinity"])
        return json.dumps(found), found
    number = chance.choice([0.0, -0.0, 1.5, -2.0, chance.gauss(0, 1e6), chance.random() * 1e-20, 1e300])
    whole = number == int(number) and abs(number) < 1e15
    return (("-0" if str(number).startswith("-0") else str(int(number))) if whole else repr(number)), number


def money(chance: random.Random) -> Value:
    cents = chance.randrange(-(10**9), 10**9)
    shown = f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02}"
    return json.dumps(shown), unscaled(Decimal(cents).scaleb(-2), 2)


def interval(chance: random.Random) -> Value:
    years, months, days = (chance.randrange(-20, 20) for _ in range(3))
    seconds = chance.randrange(-90_000, 90_000)
    away = abs(seconds)
    clock = f"{'-' if seconds < 0 else ''}{away // 3600:02}:{away // 60 % 60:02}:{away % 60:02}"
    parts = [f"{n} {unit}" for n, unit in ((years, "years"), (months, "mons"), (days, "days")) if n]
    total = ((years * 12 + months) * Decimal("30.4375") + days) * 86_400 + seconds
    return json.dumps(" ".join([*parts, clock])), int(total * 10**6)


def truth(chance: random.Random) -> Value:
    return chance.choice([("true", True), ("false", False)])


def array(element: Made, *, of: Callable[[Any], Any] = lambda value: value) -> Made:
    def make(chance: random.Random) -> Value:
        found = [("null", None) if chance.random() < 0.2 else element(chance) for _ in range(chance.randint(0, 5))]
        return "[" + ",".join(each for each, _ in found) + "]", [
            None if value is None else of(value) for _, value in found
        ]

    return make


MADE: dict[str, Made] = {
    "smallint": integer(16),
    "integer": integer(32),
    "bigint": integer(64),
    "boolean": truth,
    "real": real,
    "double precision": real,
    "numeric": any_decimal,
    "numeric(5)": decimal(5, 0),
    "numeric(10,2)": decimal(10, 2),
    "numeric(18,6)": decimal(18, 6),
    "numeric(38,10)": decimal(38, 10),
    "numeric(200,100)": decimal(200, 100),
    "money": money,
    "text": text,
    "character varying(40)": text,
    "bytea": data,
    "bit varying": bits,
    "date": day,
    "time without time zone": time(6),
    "time(3) without time zone": time(3),
    "time with time zone": timetz,
    "timestamp without time zone": moment(6),
    "timestamp(0) without time zone": moment(0),
    "timestamp(3) without time zone": moment(3),
    "timestamp with time zone": moment(6, zoned=True),
    "timestamp(2) with time zone": moment(2, zoned=True),
    "timestamp(0) with time zone": moment(0, zoned=True),
    "interval": interval,
    "json": document,
    "jsonb": document,
    "integer[]": array(integer(32)),
    "text[]": array(text),
    "jsonb[]": array(document),
    "numeric[]": array(any_decimal),
    "numeric(38,10)[]": array(decimal(38, 10)),
    "date[]": array(day),
    "double precision[]": array(real),
    "timestamp without time zone[]": array(moment(6)),
    "time without time zone[]": array(time(6), of=lambda micros: micros // 1000 * 1000),
    "bytea[]": array(data),
}
"""By PostgreSQL's spelling."""
