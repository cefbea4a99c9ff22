"""The shop: three tables with the types that real ones have."""

from __future__ import annotations

import psycopg
from psycopg import sql

TABLES = ("customers", "orders", "order_items")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL,
    email      text NOT NULL,
    tags       text[] NOT NULL DEFAULT '{}',
    profile    jsonb NOT NULL DEFAULT '{}',
    spent      numeric(12, 2) NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers ON DELETE CASCADE,
    status      text NOT NULL DEFAULT 'placed',
    total       money NOT NULL DEFAULT 0,
    shipping    jsonb,
    placed_at   timestamptz NOT NULL DEFAULT now(),
    paid_at     timestamptz
);
CREATE TABLE IF NOT EXISTS order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line     int NOT NULL,
    sku      text NOT NULL,
    quantity int NOT NULL,
    price    numeric(10, 2) NOT NULL,
    options  text[],
    PRIMARY KEY (order_id, line)
);
"""


def create_shop(dsn: str) -> None:
    """Create the database that `dsn` names, and the tables, unless they are there."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchall():
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(str(name))))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(_SCHEMA)
