"""Tokens: who may call the service, and what each may do.

A token is 256 random bits, so its SHA-256 is kept and nothing slower: a slow hash makes guessing passwords dear, and
nobody guesses 256 bits, while it would cost every request. Its clear text is given once, and is nowhere afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import sqlalchemy as sa

from tailrace.control.audit import add_audit
from tailrace.control.store import Store
from tailrace.control.tables import tokens
from tailrace.errors import ConfigError

Scope = Literal["view", "operate", "admin"]
"""Each may do what those before it may."""
PREFIX = "tailrace"
_CLEAR = re.compile(rf"{PREFIX}_(?P<id>[0-9a-f]{{12}})_(?P<secret>[\w-]+)", re.ASCII)
USE_NOTED_US = 60 * 1_000_000
"""How exactly the last use is known: so rarely is it written."""
_AT = tokens.c


@dataclass(frozen=True)
class Token:
    """A token, without what it is checked by. `sees_values`: may see the values of rows."""

    id: str
    name: str
    scope: Scope
    sees_values: bool
    created_us: int
    expires_us: int | None
    last_used_us: int | None
    revoked_us: int | None


class Tokens:
    """The tokens of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self, name: str, scope: Scope, *, sees_values: bool = False, expires_us: int | None = None, actor: str
    ) -> tuple[Token, str]:
        """A new token and its clear text. Raises `store.conflict` where a token of this name is valid."""
        made, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        with self._store.transaction() as connection:
            now = self._store.now_us(connection)
            if connection.execute(sa.select(_AT.id).where(_AT.name == name, *_valid(now))).first():
                hint = "revoke that one first, or choose another name"
                raise ConfigError(
                    "store.conflict", f"there is a token {name!r} already", hint=hint, where=f"token/{name}"
                )
            token = Token(made, name, scope, sees_values, now, expires_us, None, None)
            row = {**vars(token), "sees_values": int(sees_values), "hash": _hash(secret)}
            connection.execute(sa.insert(tokens).values(**row))
            detail = {"id": made, "scope": scope, "sees_values": sees_values, "expires_us": expires_us}
            add_audit(self._store, connection, actor, "token.create", "token", name, detail)
        return token, f"{PREFIX}_{made}_{secret}"

    def check(self, clear: str) -> Token | None:
        """The token that this is, if it is valid. How long that takes tells nothing of the secret."""
        shape = _CLEAR.fullmatch(clear)
        if shape is None:
            return None
        token_id, secret = shape["id"], shape["secret"]
        with self._store.reading() as connection:
            now = self._store.now_us(connection)
            row = connection.execute(sa.select(tokens).where(_AT.id == token_id, *_valid(now))).one_or_none()
        same = hmac.compare_digest(_hash(secret), row.hash if row is not None else _hash(""))
        if row is None or not same:
            return None
        self._note_use(token_id, row.last_used_us, now)
        return _token(row)

    def list(self) -> Sequence[Token]:
        """All there ever were, the oldest first."""
        with self._store.reading() as connection:
            found = connection.execute(sa.select(tokens).order_by(_AT.created_us, _AT.id))
            return [_token(row) for row in found]

    def revoke(self, token: str, *, actor: str) -> bool:
        """The token of this id is valid no longer. False where it was not."""
        with self._store.transaction() as connection:
            now = self._store.now_us(connection)
            valid = sa.update(tokens).where(_AT.id == token, _AT.revoked_us.is_(None))
            name = connection.execute(valid.values(revoked_us=now).returning(_AT.name)).scalar_one_or_none()
            if name is not None:
                add_audit(self._store, connection, actor, "token.revoke", "token", name, {"id": token})
        return name is not None

    def _note_use(self, token: str, last_us: int | None, now: int) -> None:
        if last_us is None or now - last_us >= USE_NOTED_US:
            with self._store.statement() as connection:
                connection.execute(sa.update(tokens).where(_AT.id == token).values(last_used_us=now))


def _valid(now: int) -> tuple[sa.ColumnElement[bool], ...]:
    return _AT.revoked_us.is_(None), sa.or_(_AT.expires_us.is_(None), _AT.expires_us > now)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: sa.Row[Any]) -> Token:
    values = {field.name: row._mapping[field.name] for field in fields(Token)}
    return Token(**{**values, "sees_values": bool(row.sees_values)})
