"""Which tables have series of their own: so many, and all others are told together, as `other`."""

from __future__ import annotations

from collections.abc import Mapping

TABLES = 100
OTHER = "other"
"""No table is called that: names of tables have a dot."""
Place = tuple[str, ...]
"""A sink or a source."""


class Named:
    """Tables by the sink or source they are of. A table that was named stays so, since a counter must not fall; while
    there is room, those with the largest weight are named next."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[Place, set[str]] = {}

    def summed(
        self, place: Place, weights: Mapping[str, float], values: Mapping[str, float | None]
    ) -> dict[str, float | None]:
        """`values`, with the sum of the others; one that is not known makes that unknown."""
        found: dict[str, float | None] = {}
        for table, value in self._told(place, weights, values).items():
            known = found.get(self.name(place, table), 0)
            found[self.name(place, table)] = None if known is None or value is None else known + value
        return found

    def latest(
        self, place: Place, weights: Mapping[str, float], values: Mapping[str, float | None]
    ) -> dict[str, float | None]:
        """`values`, with the largest of the others."""
        found: dict[str, float | None] = {}
        for table, value in self._told(place, weights, values).items():
            known = found.get(self.name(place, table))
            found[self.name(place, table)] = known if value is None else max(value, known or value)
        return found

    def worst(self, values: Mapping[str, float]) -> dict[str, float]:
        """The largest `values`, with the largest of the others. For what may fall: it names no table for good."""
        ranked = sorted(values, key=lambda table: (-values[table], table))
        others = [values[table] for table in ranked[self._most :]]
        return {table: values[table] for table in ranked[: self._most]} | ({OTHER: max(others)} if others else {})

    def name(self, place: Place, table: str) -> str:
        """What a table is told as. One that was not met yet is named where there is room."""
        names = self._names.setdefault(place, set())
        if table not in names and len(names) < self._most:
            names.add(table)
        return table if table in names else OTHER

    def keep_only(self, places: set[Place]) -> None:
        """Forget the tables of what is gone."""
        self._names = {place: names for place, names in self._names.items() if place in places}

    def _told(
        self, place: Place, weights: Mapping[str, float], values: Mapping[str, float | None]
    ) -> Mapping[str, float | None]:
        """`values`, once the heaviest tables are named."""
        for table in sorted(weights, key=lambda table: (-weights[table], table)):
            self.name(place, table)
        return values
