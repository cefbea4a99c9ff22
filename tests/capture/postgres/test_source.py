"""The source's configuration: what reaches libpq, and what is never shown."""

from __future__ import annotations

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tailrace.capture.postgres import PostgresSource
from tailrace.config import Dsn, Secret, Tls


def test_password_and_tls_reach_libpq() -> None:
    source = PostgresSource(
        id="Shop.1",
        dsn=Dsn("postgresql://cdc@db/shop?sslmode=prefer"),
        password=Secret("s3cret"),
        tls=Tls(mode="verify-full", root_cert=Path("/ca.pem"), cert=Path("/me.pem"), key=Path("/me.key")),
        tables=("public.*",),
    )
    assert conninfo_to_dict(source.conninfo()) == {
        "user": "cdc",
        "host": "db",
        "dbname": "shop",
        "password": "s3cret",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "sslcert": "/me.pem",
        "sslkey": "/me.key",
    }
    assert "s3cret" not in repr(source) + source.model_dump_json()


def test_names_default_to_the_id() -> None:
    source = PostgresSource(id="Shop.1", dsn=Dsn("postgresql://db/shop"), tables=("t",))
    assert source.slot_name == source.publication_name == "tailrace_shop_1"
