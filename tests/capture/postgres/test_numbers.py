"""Which columns a relation message means, while the catalog may be further than the stream."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tailrace.capture.postgres.messages import RelationColumn
from tailrace.capture.postgres.numbers import DROPPED, Attribute, Numbers, Told, numbers_of
from tailrace.schema import Column

TYPES = {23: "integer", 25: "text"}


@dataclass
class Table:
    """A table as the database has it; each step is a transaction of its own unless `xid` is set back."""

    attributes: list[Attribute] = field(default_factory=list)
    xid: int = 100

    def add(self, name: str, kind: int = 23) -> None:
        self.xid += 1
        number = len(self.attributes) + 1
        self.attributes.append(Attribute(number, name, kind, -1, False, False, False, None, self.xid))

    def change(self, column: str, /, **change: object) -> None:
        self.xid += 1
        place = next(i for i, each in enumerate(self.attributes) if each.name == column and not each.dropped)
        self.attributes[place] = replace(self.attributes[place], changed=self.xid, **change)  # type: ignore[arg-type]

    def drop(self, name: str) -> None:
        self.change(name, dropped=True, name=f"...{name}", type_oid=0)

    def rename(self, name: str, to: str) -> None:
        self.change(name, name=to)

    @property
    def live(self) -> list[Attribute]:
        return [each for each in self.attributes if not each.dropped]

    def columns(self) -> list[Column]:
        """As the log has them."""
        return [Column(each.name, TYPES[each.type_oid], number=each.number) for each in self.live]

    def told(self) -> Told:
        """As a transaction that comes next has them."""
        self.xid += 1
        listed = [RelationColumn(each.name, each.type_oid, each.type_modifier, False) for each in self.live]
        return Told(listed, [TYPES[each.type_oid] for each in self.live], self.xid)

    def numbers(self) -> tuple[int, ...]:
        return tuple(each.number for each in self.live)


def table(*names: str) -> Table:
    made = Table()
    for name in names:
        made.add(name)
    return made


def test_a_table_that_has_not_changed() -> None:
    made = table("id", "a")
    known = made.columns()
    assert numbers_of(made.told(), known, made.attributes) == Numbers((1, 2))


@pytest.mark.parametrize("known", [True, False])
def test_a_column_dropped_and_made_anew_is_another(known: bool) -> None:
    """Before and after are told by the same names; which is which, only the transactions' order tells."""
    made = table("id", "b")
    had = made.columns() if known else []
    before = made.told()
    made.drop("b")
    made.add("b")
    after = made.told()
    assert numbers_of(before, had, made.attributes) == Numbers((1, 2) if known else (1, 3), sure=False)
    assert numbers_of(after, had, made.attributes) == Numbers((1, 3), sure=not known)


def test_another_type_is_no_reason_to_take_two_columns_for_one() -> None:
    made = table("id", "b")
    had = made.columns()
    before = made.told()
    made.drop("b")
    made.add("b", 25)
    assert numbers_of(before, had, made.attributes) == Numbers((1, 2))
    assert numbers_of(made.told(), had, made.attributes) == Numbers((1, 3))


def test_a_transaction_that_was_overtaken_is_doubted() -> None:
    """It began before the columns were changed and wrote after that."""
    made = table("id", "b")
    had = made.columns()
    began = made.told().xid
    made.drop("b")
    made.add("b")
    assert not numbers_of(replace(made.told(), xid=began), had, made.attributes).sure


def test_a_transaction_that_changes_the_table_itself() -> None:
    """In a part of its own, such as a savepoint's, which has a larger number."""
    made = table("id", "a")
    had = made.columns()
    began = made.told().xid
    made.drop("a")
    made.add("b")
    assert numbers_of(replace(made.told(), xid=began), had, made.attributes).each == (1, 3)


def test_columns_that_change_places() -> None:
    made = table("id", "a", "b")
    had = made.columns()
    made.rename("a", "t")
    made.rename("b", "a")
    made.rename("t", "b")
    assert numbers_of(made.told(), had, made.attributes) == Numbers((1, 2, 3))


def test_columns_that_are_not_published() -> None:
    made = table("id", "a", "b")
    made.attributes[1] = replace(made.attributes[1], generated=True)
    told = made.told()
    told = replace(told, columns=[told.columns[0], told.columns[2]], types=["integer", "integer"])
    had = [made.columns()[0], made.columns()[2]]
    assert numbers_of(told, had, made.attributes) == Numbers((1, 3))
    made.rename("b", "a2")
    assert numbers_of(told, had, made.attributes) == Numbers((1, 3))


def test_a_table_that_is_gone() -> None:
    made = table("id", "a", "b")
    had = made.columns()
    made.drop("a")
    made.add("c")
    assert numbers_of(made.told(), had, []) == Numbers((1, 3, 0))


def test_a_type_that_is_gone_is_no_change() -> None:
    made = table("id", "a")
    had = made.columns()
    told = replace(made.told(), types=["integer", DROPPED])
    made.drop("a")
    made.add("b")
    assert numbers_of(told, had, made.attributes) == Numbers((1, 2))


def test_too_many_histories_are_not_looked_at() -> None:
    made = table("id", *(f"a{number}" for number in range(40)))
    had = made.columns()
    for number in range(40):
        made.drop(f"a{number}")
    for number in range(20):
        made.add(f"b{number}")
    told = made.told()
    for number in range(20):
        made.drop(f"b{number}")
    found = numbers_of(told, had, made.attributes)
    assert found == Numbers((1, *[0] * 20), sure=False)


def test_whatever_happens_what_is_sure_is_true() -> None:
    """Any number of changes before the message, and any number after it, without overtaking."""
    for seed in range(1000):
        chance = random.Random(seed)
        made = table("id", "a", "b")
        for _ in range(chance.randrange(3)):
            _step(made, chance)
        known = made.columns()
        for _ in range(chance.randrange(4)):
            _step(made, chance)
        told, truth = made.told(), made.numbers()
        for _ in range(chance.randrange(4)):
            _step(made, chance)
        found = numbers_of(told, known, made.attributes)
        assert len(found.each) == len(truth)
        assert not found.sure or found.each == truth, f"seed {seed}"


def test_most_of_what_happens_is_sure() -> None:
    """A change of a kind that people make, told before and after it, when the catalog has it already."""
    chance = random.Random(11)
    found: list[bool] = []
    for _ in range(300):
        made = table("id", "a", "b")
        known, before = made.columns(), made.told()
        _migration(made, chance)
        after = made.told()
        found += [numbers_of(told, known, made.attributes).sure for told in (before, after)]
    assert found.count(True) == len(found)


def _step(made: Table, chance: random.Random) -> None:
    free = [name for name in "abcde" if name not in {each.name for each in made.live}]
    names = [each.name for each in made.live[1:]]
    match chance.choice(["add", "drop", "rename", "retype"]):
        case "add" if free:
            made.add(chance.choice(free), chance.choice([23, 25]))
        case "drop" if names:
            made.drop(chance.choice(names))
        case "rename" if names and free:
            made.rename(chance.choice(names), chance.choice(free))
        case "retype" if names:
            made.change(chance.choice(names), type_oid=chance.choice([23, 25]))
        case _:
            pass


def _migration(made: Table, chance: random.Random) -> None:
    """Drops and adds under other names, renames, other types."""
    new: Sequence[str] = ["x", "y", "z"]
    for name in chance.sample(["a", "b"], chance.randrange(3)):
        made.drop(name)
    for name in new[: chance.randrange(3)]:
        made.add(name, chance.choice([23, 25]))
    for each in chance.sample(made.live[1:], chance.randrange(len(made.live))):
        made.change(each.name, type_oid=25)
