"""The workload: people who register, order, pay, change their minds; in transactions of a few rows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tailrace.config import redact
from tailrace.errors import SourceError

POLL_S = 0.1
MOST_ORDERS = 5_000
"""Beyond this the oldest orders are deleted as fast as new ones come, so a long demo stays small."""

_NAMES = ("Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth", "Radia Perlman")
_TAGS = ("new", "loyal", "b2b", "gift, wrapped", 'says "hi"', "zürich")
_SKUS = ("tea-green", "tea-black", "cup", "pot", "kettle", "strainer")

Run = Callable[..., psycopg.Cursor[Any]]


class ShopWorkload(threading.Thread):
    """Changes about `rate` rows a second until stopped, from the moment the replication slot can see it.

    The same seed on an empty shop makes the same sequence of transactions.
    """

    def __init__(self, dsn: str, slot: str, *, rate: float, seed: int = 1) -> None:
        super().__init__(name="workload", daemon=True)
        self._dsn, self._slot, self._rate = dsn, slot, rate
        self._chance = random.Random(seed)
        self._halt = threading.Event()
        self._customers: list[int] = []
        self._orders: list[int] = []
        self.began: float | None = None
        """When the first change was made, by the monotonic clock."""
        self.error: SourceError | None = None

    def stop(self) -> None:
        """End after the running transaction; `join` waits for it."""
        self._halt.set()

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                self._await_slot(connection)
                self._recall(connection)
                self._work(connection)
        except psycopg.Error as error:
            self.error = SourceError(
                "demo.workload",
                f"the workload cannot go on: {redact(str(error).strip())}",
                hint="start the demo again, without --keep if you changed its tables",
            )

    def _await_slot(self, connection: psycopg.Connection[Any]) -> None:
        """The demo takes no snapshot: what was written before the slot exists would not be delivered."""
        query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL"
        while not connection.execute(query, (self._slot,)).fetchall() and not self._halt.wait(POLL_S):
            pass

    def _recall(self, connection: psycopg.Connection[Any]) -> None:
        self._customers = [number for (number,) in connection.execute("SELECT id FROM customers ORDER BY id")]
        self._orders = [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        self.began = due = time.monotonic()
        while not self._halt.wait(max(0.0, due - time.monotonic())):
            try:
                with connection.transaction():
                    rows = self._transaction()(connection.execute)
            except psycopg.IntegrityError:  # a row we remember is gone: someone else works in the shop too
                self._recall(connection)
                continue
            due = max(due, time.monotonic() - 1) + rows / self._rate

    def _transaction(self) -> Callable[[Run], int]:
        """What happens next, by chance; each returns how many rows it changed."""
        if not self._customers:
            return self._register
        if len(self._orders) > MOST_ORDERS:
            return self._delete_oldest
        if not self._orders:
            return self._order
        kinds = (self._register, self._order, self._pay, self._edit_profile, self._reprice, self._cancel)
        return self._chance.choices(kinds, weights=(5, 40, 20, 15, 10, 10))[0]

    def _register(self, execute: Run) -> int:
        name = self._chance.choice(_NAMES)
        email = f"{name.lower().replace(' ', '.')}.{self._chance.randrange(10**6)}@example.com"
        query = "INSERT INTO customers (name, email, tags, profile) VALUES (%s, %s, %s, %s) RETURNING id"
        row = execute(query, (name, email, self._some_tags(), self._profile())).fetchone()
        self._customers.append(row[0])  # type: ignore[index]
        return 1

    def _order(self, execute: Run) -> int:
        customer = self._chance.choice(self._customers)
        query = "INSERT INTO orders (customer_id, shipping) VALUES (%s, %s) RETURNING id"
        [(order,)] = execute(query, (customer, self._profile())).fetchall()
        lines = self._chance.randint(1, 4)
        total = Decimal(0)
        for line in range(1, lines + 1):
            total += self._add_line(execute, order, line)
        execute("UPDATE orders SET total = %s::numeric::money WHERE id = %s", (total, order))
        execute("UPDATE customers SET spent = spent + %s WHERE id = %s", (total, customer))
        self._orders.append(order)
        return lines + 3

    def _add_line(self, execute: Run, order: int, line: int) -> Decimal:
        quantity = self._chance.randint(1, 5)
        price = Decimal(self._chance.randint(100, 99_999)) / 100
        options = self._chance.choice((self._some_tags(), None))
        execute(
            "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, %s)",
            (order, line, self._chance.choice(_SKUS), quantity, price, options),
        )
        return quantity * price

    def _pay(self, execute: Run) -> int:
        order = self._chance.choice(self._orders)
        execute("UPDATE orders SET status = 'paid', paid_at = now() WHERE id = %s", (order,))
        return 1

    def _edit_profile(self, execute: Run) -> int:
        change = (self._some_tags(), self._profile(), self._chance.choice(self._customers))
        execute("UPDATE customers SET tags = %s, profile = %s WHERE id = %s", change)
        return 1

    def _reprice(self, execute: Run) -> int:
        order = self._chance.choice(self._orders)
        return execute("UPDATE order_items SET price = price * 0.9 WHERE order_id = %s", (order,)).rowcount or 1

    def _cancel(self, execute: Run) -> int:
        return self._withdraw(execute, self._chance.randrange(len(self._orders)))

    def _delete_oldest(self, execute: Run) -> int:
        return self._withdraw(execute, 0)

    def _withdraw(self, execute: Run, place: int) -> int:
        order = self._orders.pop(place)
        items = execute("DELETE FROM order_items WHERE order_id = %s", (order,)).rowcount
        execute("DELETE FROM orders WHERE id = %s", (order,))
        return items + 1

    def _some_tags(self) -> list[str]:
        return self._chance.sample(_TAGS, self._chance.randint(0, 3))

    def _profile(self) -> Jsonb:
        return Jsonb({"visits": self._chance.randrange(1000), "city": self._chance.choice(["Genève", "東京", "Oslo"])})
