"""What a query over changes says, understood before any Spark runs: its outputs, its predicate, its look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

CHANGES = "changes"
IMAGES = ("after", "before", "key")
FACTS = ("op", "database", "schema", "table", "ts_us")
"""What a query may name beside the images."""
ROW_FACTS = frozenset({"database", "schema", "table"})
"""Those that are the same for a row whatever happens to it."""

_CLAUSES = frozenset({"expressions", "from_", "joins", "where"})
_MANY = (exp.AggFunc, exp.Window, exp.UDTF, exp.Explode, exp.Inline, exp.Query)
_VOLATILE = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser)
_SEVERAL_NAMES = frozenset(
    ("stack", "json_tuple", "inline", "inline_outer", "variant_explode", "variant_explode_outer")
)
_VOLATILE_NAMES = frozenset(
    ("now", "localtimestamp", "random", "monotonically_increasing_id", "shuffle", "randstr", "uniform", "session_user")
)


class BadQueryError(ValueError):
    """What a query may not say."""


@dataclass(frozen=True)
class Output:
    """What a query selects: all columns but some, a column under a name, or an expression that `reads` columns."""

    form: Literal["star", "column", "expression"]
    name: str = ""
    source: str = ""
    but: tuple[str, ...] = ()
    sql: str = ""
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lookup:
    """A table that is looked into: under this alias, by columns of it."""

    alias: str
    table: str
    columns: tuple[str, ...]
    on: str


@dataclass(frozen=True)
class Statement:
    """A query: `reads` are the columns its predicate and its look-ups need, `names` all it names beside `after`."""

    outputs: tuple[Output, ...]
    where: str | None
    lookups: tuple[Lookup, ...]
    reads: frozenset[str]
    names: frozenset[str]

    @property
    def computed(self) -> tuple[Output, ...]:
        return tuple(each for each in self.outputs if each.form == "expression")

    def names_after(self, columns: tuple[str, ...]) -> list[str]:
        """The columns that come out where these come in."""
        found: dict[str, None] = {}
        for each in self.outputs:
            names = [name for name in columns if name not in each.but] if each.form == "star" else [each.name]
            found |= dict.fromkeys(names)
        return list(found)


def parsed(query: str, tables: frozenset[str]) -> Statement:
    """The statement, where `tables` can be looked into. Raises `BadQueryError`."""
    select = _select(query)
    _refuse_clauses(select)
    lookups = tuple(_lookup(join, tables) for join in select.args.get("joins") or ())
    known = frozenset(lookup.alias for lookup in lookups)
    where = select.args.get("where")
    expressions = [*select.expressions, *([where] if where else []), *(join.args["on"] for join in _joins(select))]
    names = frozenset(name for each in expressions for name in _names(each, known))
    needed = [*([where] if where else []), *(join.args["on"] for join in _joins(select))]
    reads = frozenset(name for each in needed for name in _reads(each))
    outputs = tuple(_output(each) for each in select.expressions)
    _refuse_equal_names(outputs)
    return Statement(outputs, where.this.sql("spark") if where else None, lookups, reads, names)


def _select(query: str) -> exp.Select:
    try:
        [found] = sqlglot.parse(query, dialect="spark")
    except SqlglotError as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        place = f" at line {first['line']}, column {first['col']}" if "line" in first else ""
        raise BadQueryError(f"not valid SQL: {first.get('description', 'it ends too early')}{place}") from None
    except ValueError:
        raise BadQueryError("it is more than one statement") from None
    if not isinstance(found, exp.Select):
        raise BadQueryError(f"it is no SELECT … FROM {CHANGES}")
    return found


def _refuse_clauses(select: exp.Select) -> None:
    more = sorted(name for name, value in select.args.items() if value and name not in _CLAUSES)
    if more:
        raise BadQueryError(f"it has {more[0].rstrip('_').upper()}: each change is looked at alone")
    source = select.args.get("from_")
    if source is None or not isinstance(source.this, exp.Table) or source.this.sql("spark") != CHANGES:
        raise BadQueryError(f"it selects from something else than {CHANGES}")
    for node in (node for each in select.args.values() for part in _listed(each) for node in part.walk()):
        name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if isinstance(node, _MANY) or name in _SEVERAL_NAMES:
            raise BadQueryError(f"`{node.sql('spark')}` is not of one change: no aggregates, windows or subqueries")
        if isinstance(node, _VOLATILE) or name in _VOLATILE_NAMES:
            raise BadQueryError(f"`{node.sql('spark')}` says something else when it is repeated")


def _listed(value: object) -> Iterator[exp.Expression]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, exp.Expression):
            yield each


def _joins(select: exp.Select) -> list[exp.Join]:
    return list(select.args.get("joins") or ())


def _lookup(join: exp.Join, tables: frozenset[str]) -> Lookup:
    table = join.this
    if not isinstance(table, exp.Table) or table.name not in tables or table.args.get("db"):
        named = ", ".join(sorted(tables)) or "none"
        raise BadQueryError(f"it joins what is not in `tables_read` ({named})")
    on = join.args.get("on")
    if join.side != "LEFT" or join.kind or join.method or on is None:
        raise BadQueryError("a join is `LEFT JOIN … ON`: put what must be found into WHERE")
    alias = table.alias_or_name
    columns = []
    for part in on.flatten() if isinstance(on, exp.And) else [on]:
        sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
        own = [side for side in sides if isinstance(side, exp.Column) and side.table == alias]
        if len(own) != 1:
            raise BadQueryError(f"a join is by columns: `{alias}.column = after.column`, more of them with AND")
        columns.append(own[0].name)
    return Lookup(alias, table.name, tuple(columns), on.sql("spark"))


def _names(expression: exp.Expression, aliases: frozenset[str]) -> Iterator[str]:
    """What it names beside columns of `after`. Raises `BadQueryError` for what there is not."""
    if expression.find(exp.Star):
        return  # that of an output, which says itself what it may have
    for column in expression.find_all(exp.Column):
        first = column.parts[0].name
        if len(column.parts) == 1:
            if first not in (*FACTS, *IMAGES):
                raise BadQueryError(f"there is no `{first}`: columns are `after.{first}`, facts {', '.join(FACTS)}")
            yield first
        elif first not in (*IMAGES, *aliases):
            raise BadQueryError(f"there is no `{first}`: columns are of {', '.join((*IMAGES, *sorted(aliases)))}")
        elif first != "after" and first not in aliases:
            yield first


def _reads(expression: exp.Expression) -> Iterator[str]:
    for column in expression.find_all(exp.Column):
        if len(column.parts) > 1 and column.parts[0].name == "after":
            yield column.parts[1].name


def _output(projection: exp.Expression) -> Output:
    inner = projection.this if isinstance(projection, exp.Alias) else projection
    if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
        return _star(inner)
    plain = isinstance(inner, exp.Column) and [part.name for part in inner.parts][:-1] == ["after"]
    if not isinstance(projection, exp.Alias | exp.Column):
        raise BadQueryError(f"`{inner.sql('spark')}` has no name: write `… AS name`")
    name = projection.alias_or_name
    if plain:
        return Output("column", name, source=inner.name)
    return Output("expression", name, sql=inner.sql("spark"), reads=frozenset(_reads(inner)))


def _star(inner: exp.Expression) -> Output:
    star = inner.this if isinstance(inner, exp.Column) else inner
    if not isinstance(inner, exp.Column) or inner.table != "after":
        raise BadQueryError("all columns are `after.*`")
    if star.args.get("replace") or star.args.get("rename"):
        raise BadQueryError("write `after.*, expression AS name` instead of REPLACE and RENAME")
    return Output("star", but=tuple(each.name for each in star.args.get("except_") or ()))


def _refuse_equal_names(outputs: tuple[Output, ...]) -> None:
    names = [each.name for each in outputs if each.name]
    for twice in {name for name in names if names.count(name) > 1}:
        raise BadQueryError(f"two outputs have the name `{twice}`")


def query_of(select: str) -> str:
    """A select list as a query."""
    return f"SELECT {select}\nFROM {CHANGES}"
