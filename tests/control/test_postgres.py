"""A store in PostgreSQL: what its outages and refusals mean, and that nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from tailrace.config import Dsn
from tailrace.control import Store, postgres, refuse_lost, store_exists, text_of
from tailrace.control.ledger import SnapshotLedger
from tailrace.errors import Action, SetupError, TailraceError, decide
from tailrace.testing.waiting import eventually

CANARY = "canary-7261"


@pytest.fixture
def url(place: Callable[[str], Dsn]) -> Dsn:
    return place("postgresql")


@pytest.fixture
def opened(open_store: Callable[[str], Store]) -> Store:
    return open_store("postgresql")


def _runs(store: Store) -> int:
    return len(SnapshotLedger(store).runs("shop"))


def test_a_server_that_is_away_is_waited_for() -> None:
    with pytest.raises(SetupError) as caught:
        Store(Dsn(f"postgresql://tailrace:{CANARY}@127.0.0.1:1/store"))
    assert (caught.value.code, decide(caught.value)) == ("store.unavailable", Action.RETRY)
    assert caught.value.where == "postgresql://127.0.0.1:1/store"
    assert CANARY not in f"{caught.value.as_dict()}"


def test_a_connection_that_the_server_ends_is_an_outage_and_the_next_one_works(opened: Store) -> None:
    with pytest.raises(SetupError) as caught, opened.transaction() as connection:
        mine = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(text_of(opened.place), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [mine])
        connection.execute(sa.text("SELECT 1"))
    assert caught.value.code == "store.unavailable"
    assert _runs(opened) == 0


def test_connections_that_ended_while_nobody_used_them_are_not_noticed(opened: Store) -> None:
    with opened.reading() as connection:
        mine = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    with psycopg.connect(text_of(opened.place), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [mine])
        alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: other.execute(alive, [mine]).fetchone() == (0,))
    assert _runs(opened) == 0


@pytest.mark.parametrize("part", ["password", "database", "schema"])
def test_whoever_is_not_let_in_is_told_and_stops(url: Dsn, part: str) -> None:
    clear = text_of(url)
    parts = urlsplit(clear)
    wrong = {
        "password": clear.replace(str(parts.password), CANARY),
        "database": clear.replace("/postgres?", "/nowhere?"),
        "schema": clear.replace("store_", "nowhere_"),
    }
    with pytest.raises(SetupError) as caught:
        Store(Dsn(wrong[part]))
    assert (caught.value.code, decide(caught.value)) == ("store.refused", Action.STOP)
    assert CANARY not in f"{caught.value.as_dict()}"
    assert str(parts.password) not in f"{caught.value.as_dict()}"


def test_a_server_without_tls_is_not_trusted_by_who_wants_it(url: Dsn) -> None:
    with pytest.raises(SetupError, match="do not trust each other") as caught:
        Store(Dsn(text_of(url) + "&sslmode=require"))
    assert caught.value.code == "store.refused"


def test_a_url_that_libpq_does_not_read(url: Dsn) -> None:
    with pytest.raises(TailraceError) as caught:
        Store(Dsn(text_of(url) + "&ssl_mood=good"))
    assert caught.value.code == "store.bad_url"
    assert "ssl_mood" in caught.value.message
    with pytest.raises(TailraceError) as caught:
        Store(Dsn(f"postgresql://tailrace:{CANARY}%zz@localhost/store"))  # which libpq quotes
    assert caught.value.code == "store.bad_url"
    assert CANARY not in f"{caught.value.as_dict()}"


def test_a_text_that_postgres_cannot_have(opened: Store) -> None:
    with pytest.raises(TailraceError) as caught:
        SnapshotLedger(opened).runs("\x00")
    assert (caught.value.code, decide(caught.value)) == ("store.bad_text", Action.STOP)


def test_a_turn_that_does_not_come(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "WAIT_S", 1)
    with opened.transaction(), pytest.raises(SetupError, match="for more than 1 s") as caught:
        _request(opened)
    assert (caught.value.code, decide(caught.value)) == ("store.busy", Action.RETRY)
    _request(opened)
    assert _runs(opened) == 1


def test_whoever_stops_in_its_turn_loses_it(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process does that is stopped by a signal: those behind it go on, and what it had done is undone."""
    monkeypatch.setattr(postgres, "IDLE_S", 1)
    with pytest.raises(SetupError) as caught, opened.transaction() as connection:
        connection.execute(sa.text("INSERT INTO indexed VALUES ('shop', 'log', 1)"))
        _request(opened)  # which waits until the server has ended this transaction
        connection.execute(sa.text("SELECT 1"))
    assert caught.value.code == "store.unavailable"
    assert (_runs(opened), SnapshotLedger(opened).indexed("shop", "log")) == (1, 0)


def test_many_may_open_a_new_store_at_once(url: Dsn) -> None:
    errors: list[BaseException] = []
    begin = threading.Barrier(4)

    def open_and_look() -> None:
        try:
            begin.wait(60)
            with closing(Store(url)) as store:
                _request(store)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with closing(Store(url)) as store:
        assert _runs(store) == 4


def test_a_process_has_few_connections_however_often_it_opens_the_store(url: Dsn) -> None:
    stores = [Store(url) for _ in range(8)]
    for store in stores:
        _request(store)
    pools = {id(store._engine.pool) for store in stores}
    for store in stores[1:]:
        store.close()
    assert (len(pools), _runs(stores[0])) == (1, 8)
    stores[0].close()


def test_a_database_without_our_tables_is_a_lost_store(url: Dsn, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "shop"
    (log / "manifest").mkdir(parents=True)
    refuse_lost(url, [log])
    (log / "manifest" / "000.jsonl").touch()
    with pytest.raises(SetupError, match="the log of shop") as caught:
        refuse_lost(url, [log])
    assert (caught.value.code, decide(caught.value)) == ("store.lost", Action.STOP)
    assert not store_exists(url)
    with psycopg.connect(text_of(url)) as connection:
        connection.execute(caught.value.hint.rpartition(": ")[2].encode())  # the way out, as it is told
    refuse_lost(url, [log])
    with closing(Store(url)) as store:
        assert _runs(store) == 0


def _request(store: Store) -> None:
    SnapshotLedger(store).request("shop", "asked", [], log_id="log", since=0)
