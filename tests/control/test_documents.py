"""Documents: versions that nobody overwrites unseen, with who made them and why."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.control import Store
from tailrace.control.audit import Audit, AuditFilter
from tailrace.control.documents import ABSENT, Documents, Version, content_hash
from tailrace.control.events import Events
from tailrace.errors import Action, ConfigError, decide


@pytest.fixture
def documents(store: Store) -> Documents:
    return Documents(store)


def document(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"dsn": "${SHOP_DSN}", "n": [1, None, "é"]}}


def put(documents: Documents, name: str, content: dict[str, Any], expected: int | None = None) -> Version:
    return documents.put("pipeline", name, content, expected_version=expected, actor="ann", cause="asked")


def test_a_document_comes_back_as_it_was_written(documents: Documents) -> None:
    made = put(documents, "shop", document("shop"), ABSENT)
    assert (made.version, made.actor, made.cause, made.hash) == (1, "ann", "asked", content_hash(document("shop")))
    assert documents.get("pipeline", "shop") == made
    assert made.content == document("shop")
    assert documents.get("source", "shop") is None


def test_any_text_may_be_in_a_document(documents: Documents) -> None:
    odd = {"metadata": {"labels": {"nul\x00": "half\ud800"}}, "text": "\x00\ud800é"}
    made = put(documents, "odd", odd)
    assert documents.list("pipeline", labels={"nul\x00": "half\ud800"}) == [made]
    assert made.content == odd


def test_only_the_expected_version_is_replaced(documents: Documents) -> None:
    put(documents, "shop", document("shop"))
    assert put(documents, "shop", document("shop", team="a"), 1).version == 2
    for expected in (1, 3, ABSENT):
        with pytest.raises(ConfigError, match="at version 2") as caught:
            put(documents, "shop", document("shop", team="b"), expected)
        assert (caught.value.code, decide(caught.value)) == ("store.conflict", Action.STOP)
        assert "look at it again" in caught.value.hint
    with pytest.raises(ConfigError, match="is not there"):
        put(documents, "other", document("other"), 1)
    assert [each.version for each in documents.history("pipeline", "shop")] == [2, 1]


def test_the_same_document_again_changes_nothing(documents: Documents, store: Store) -> None:
    made = put(documents, "shop", {"a": 1, "b": 2})
    assert put(documents, "shop", {"b": 2, "a": 1}) == made
    assert documents.history("pipeline", "shop") == [made]
    assert len(Audit(store).list()) == 1


def test_documents_are_listed_by_name_and_labels_page_by_page(documents: Documents) -> None:
    for name in ("d", "b", "a", "c"):
        put(documents, name, document(name, team="x" if name in "ab" else "y", tier="1"))

    def names(**wanted: Any) -> list[str]:
        return [each.name for each in documents.list("pipeline", **wanted)]

    assert names() == ["a", "b", "c", "d"]
    assert names(limit=2) == ["a", "b"]
    assert names(after="b", limit=1) == ["c"]
    assert names(labels={"team": "x"}) == ["a", "b"]
    assert names(labels={"team": "y", "tier": "1"}, after="c") == ["d"]
    assert names(labels={"team": "x", "tier": "2"}) == []
    put(documents, "a", document("a", team="y"))
    assert names(labels={"team": "x"}) == ["b"]
    assert list(documents.list("sink")) == []


def test_a_deleted_document_keeps_its_history_and_goes_on_counting(documents: Documents) -> None:
    put(documents, "shop", document("shop", team="x"))
    with pytest.raises(ConfigError, match="version 2 was expected"):
        documents.delete("pipeline", "shop", expected_version=2, actor="ben", cause="done with it")
    assert documents.delete("pipeline", "shop", expected_version=1, actor="ben", cause="done with it")
    assert not documents.delete("pipeline", "shop", expected_version=None, actor="ben", cause="again")
    assert documents.get("pipeline", "shop") is None
    assert list(documents.list("pipeline", labels={"team": "x"})) == []
    assert put(documents, "shop", document("shop"), ABSENT).version == 3
    found = [(each.version, each.content is None, each.actor) for each in documents.history("pipeline", "shop")]
    assert found == [(3, False, "ann"), (2, True, "ben"), (1, False, "ann")]
    assert [each.version for each in documents.history("pipeline", "shop", before=3, limit=1)] == [2]


def test_a_change_has_its_audit_row_and_its_event(documents: Documents, store: Store) -> None:
    made = put(documents, "shop", document("shop"))
    documents.delete("pipeline", "shop", expected_version=None, actor="ben", cause="over")
    [gone, written] = Audit(store).list(AuditFilter(kind="pipeline", name="shop"))
    assert (written.actor, written.action, written.detail["version"]) == ("ann", "document.put", 1)
    assert (gone.actor, gone.action, gone.detail["cause"]) == ("ben", "document.delete", "over")
    assert written.at_us == pytest.approx(made.at_us, abs=60_000_000)
    assert [each.type for each in Events(store).after(0).events] == ["document.put", "document.delete"]
    assert "SHOP_DSN" not in str(Audit(store).list())


def test_a_refused_change_leaves_no_trace(documents: Documents, store: Store) -> None:
    with pytest.raises(ConfigError):
        put(documents, "shop", document("shop"), 1)
    assert (list(Audit(store).list()), Events(store).last()) == ([], 0)
    assert list(documents.history("pipeline", "shop")) == []
