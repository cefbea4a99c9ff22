"""What a NATS server in operator mode needs: an operator, an account and a user, each a signed token."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys
from nacl.signing import SigningKey

_NO_BOUND = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "subs": -1, "conn": -1, "data": -1}


@dataclass(frozen=True)
class Signer:
    """A key of one kind; `seed` is what its owner keeps, `public` how the server knows it."""

    seed: str
    public: str

    @classmethod
    def new(cls, prefix: int) -> Signer:
        seed = nkeys.encode_seed(bytes(SigningKey(os.urandom(32))), prefix)
        return cls(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())

    def token(self, subject: Signer, name: str, claims: dict[str, Any]) -> str:
        """`subject` may do what the claims say."""
        body = {"jti": name, "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": name}
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": {**claims, "version": 2}}]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encoded(nkeys.from_seed(bytearray(self.seed.encode())).sign(text.encode()))}"


@dataclass(frozen=True)
class Operator:
    """The server's settings, and the file of a user it lets in."""

    settings: dict[str, Any]
    credentials: str

    @classmethod
    def new(cls) -> Operator:
        operator, account, user = (Signer.new(kind) for kind in _KINDS)
        system = Signer.new(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = {
            "limits": {**_NO_BOUND, "imports": -1, "payload": 20_000, "exports": -1, "wildcards": True},
            "type": "account",
        }
        granted = operator.token(account, "shop", limits)
        bounds = {"type": "user", "subs": -1, "data": -1, "payload": 20_000}
        login = account.token(user, "sink", bounds)
        settings = {
            "operator": operator.token(operator, "tests", {"type": "operator"}),
            "resolver": "MEMORY",
            "resolver_preload": {
                account.public: granted,
                system.public: operator.token(system, "system", {"type": "account"}),
            },
            "system_account": system.public,
        }
        return cls(settings, _credentials(login, user.seed))


_KINDS = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)


def new_user(folder: Path, name: str) -> tuple[Path, str]:
    """(The file with the seed of a user's nkey, the public key)."""
    user = Signer.new(nkeys.PREFIX_BYTE_USER)
    path = folder / f"{name}.nk"
    path.write_text(user.seed + "\n")
    return path, user.public


def _credentials(token: str, seed: str) -> str:
    texts = []
    for name, text in (("NATS USER JWT", token), ("USER NKEY SEED", seed)):
        texts.append(f"-----BEGIN {name}-----\n{text}\n------END {name}------\n")
    return "\n".join(texts)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
