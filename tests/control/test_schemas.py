"""The schema registry and the sightings, in each database that may hold them."""

from __future__ import annotations

import pytest

from tailrace.control import Store
from tailrace.control.schemas import SchemaRegistry, SchemaVersion
from tailrace.control.sightings import Sightings
from tailrace.schema import Column, TableSchema


@pytest.fixture
def registry(store: Store) -> SchemaRegistry:
    return SchemaRegistry(store)


def _version(number: int, table: str, offset: int) -> SchemaVersion:
    schema = TableSchema(number, "db", "public", table, (Column("id", "bigint", False, 1),), ("id",), 5, "0/1")
    return SchemaVersion(schema, schema.fingerprint, f"0/{number}", offset, 1_700_000_000_000_000 + number)


def test_versions_come_back_by_table_and_age(registry: SchemaRegistry) -> None:
    first, other, second = _version(1, "b", 0), _version(2, "a", 0), _version(3, "b", 40)
    registry.enter("shop", "log", [first, other, second])
    registry.enter("crm", "log", [])
    assert registry.versions("shop") == (other, first, second)
    assert registry.known("shop", "log") == {1, 2, 3}
    assert registry.sources() == ("shop",)


def test_entering_again_changes_nothing(registry: SchemaRegistry) -> None:
    first, moved, second = _version(1, "a", 0), _version(1, "a", 99), _version(2, "a", 40)
    registry.enter("shop", "log", [first])
    registry.enter("shop", "log", [moved, second])
    assert registry.versions("shop") == (first, second)


def test_a_log_that_replaced_another_brings_its_own_versions(registry: SchemaRegistry) -> None:
    registry.enter("shop", "log", [_version(1, "a", 0), _version(2, "a", 40)])
    registry.enter("crm", "log", [_version(1, "a", 0)])
    registry.enter("shop", "new log", [_version(1, "b", 0)])
    assert registry.versions("shop") == (_version(1, "b", 0),)
    assert registry.known("shop", "log") == set()
    assert registry.known("crm", "log") == {1}


def test_the_version_of_a_change_is_the_newest_up_to_its_offset(registry: SchemaRegistry) -> None:
    first, second = _version(1, "a", 10), _version(2, "a", 40)
    registry.enter("shop", "log", [first, second, _version(3, "b", 0)])
    found = [registry.valid_at("shop", "public", "a", offset) for offset in (9, 10, 39, 40, 1 << 40)]
    assert found == [None, first, first, second, second]


def test_sightings_are_replaced_as_a_whole_per_source(store: Store) -> None:
    shop, crm = Sightings(store, "shop"), Sightings(store, "crm")
    crm.replace({("public", "a"): "1"})
    shop.replace({("public", "a"): "2", ("public", "b"): "3"})
    shop.replace({("public", "b"): "4"})
    assert (shop.load(), crm.load()) == ({("public", "b"): "4"}, {("public", "a"): "1"})
    shop.replace({})
    assert shop.load() == {}
