"""Tokens: shown once, kept as a hash, and valid no longer than they are to be."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tailrace.control import Store
from tailrace.control.audit import Audit
from tailrace.control.tables import METADATA
from tailrace.control.tokens import Tokens
from tailrace.errors import ConfigError


@pytest.fixture
def tokens(store: Store) -> Tokens:
    return Tokens(store)


def test_a_token_is_what_its_clear_text_says(tokens: Tokens) -> None:
    made, clear = tokens.create("ci", "operate", actor="ann")
    other, clear_of_other = tokens.create("page", "admin", sees_values=True, actor="ann")
    assert (made.name, made.scope, made.sees_values) == ("ci", "operate", False)
    assert (tokens.check(clear), tokens.check(clear_of_other)) == (made, other)
    first, second = clear.rpartition("_"), clear_of_other.rpartition("_")
    wrong = ["", "tailrace", clear[:-1], clear + "x", clear.replace("tailrace", "other"), clear.partition("_")[2]]
    for text in [
        *wrong,
        first[0] + "_" + second[2],
        f"tailrace_{made.id}_",
        "tailrace__",
        "\x00é",
        f"tailrace_{made.id}_\x00",
        "tailrace_\x00_x",
    ]:
        assert tokens.check(text) is None, text


def test_a_token_that_is_revoked_or_over_is_none(tokens: Tokens, store: Store) -> None:
    made, clear = tokens.create("ci", "view", actor="ann")
    _, over = tokens.create("old", "view", expires_us=made.created_us - 1, actor="ann")
    _, coming = tokens.create("new", "view", expires_us=made.created_us + 3_600_000_000, actor="ann")
    assert tokens.check(over) is None
    assert tokens.check(coming) is not None
    assert tokens.revoke(made.id, actor="ben")
    assert not tokens.revoke(made.id, actor="ben")
    assert tokens.check(clear) is None
    assert {(each.name, each.revoked_us is not None) for each in tokens.list()} == {
        ("ci", True),
        ("old", False),
        ("new", False),
    }
    told = [(row.actor, row.action, row.name) for row in Audit(store).list()]
    assert told[0] == ("ben", "token.revoke", "ci")
    assert told[-1] == ("ann", "token.create", "ci")


def test_a_name_is_taken_while_its_token_is_valid(tokens: Tokens) -> None:
    made, _ = tokens.create("ci", "view", actor="ann")
    with pytest.raises(ConfigError) as caught:
        tokens.create("ci", "admin", actor="ann")
    assert caught.value.code == "store.conflict"
    tokens.revoke(made.id, actor="ann")
    tokens.create("ci", "admin", actor="ann")


def test_the_last_use_is_noted(tokens: Tokens) -> None:
    _, clear = tokens.create("ci", "view", actor="ann")
    assert tokens.list()[0].last_used_us is None
    tokens.check(clear)
    first = tokens.list()[0].last_used_us
    tokens.check(clear)
    assert first is not None
    assert tokens.list()[0].last_used_us == first  # not for every request


def test_the_clear_text_is_nowhere_in_the_store(tokens: Tokens, store: Store) -> None:
    _, clear = tokens.create("ci", "view", actor="ann")
    tokens.check(clear)
    secret = clear.split("_", 2)[2]
    with store.reading() as connection:
        rows = [row for table in METADATA.sorted_tables for row in connection.execute(sa.select(table))]
    assert rows
    assert secret not in str(rows)
