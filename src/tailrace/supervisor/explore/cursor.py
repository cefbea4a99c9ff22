"""Where a look at a log goes on: an opaque text that is good for the same question alone."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tailrace.errors import ConfigError

_VERSION = 1


@dataclass(frozen=True)
class Cursor:
    """`offset`: what lies beyond it, in the look's direction, was not shown yet."""

    log_id: str
    question: str
    offset: int

    def text(self) -> str:
        """What a caller is given."""
        packed = json.dumps([_VERSION, self.log_id, self.question, self.offset], separators=(",", ":"))
        return base64.urlsafe_b64encode(packed.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str, log_id: str, question: str) -> Cursor:
        """The inverse. Raises `explore.cursor` where it is none, or is another question's or log's."""
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, of_log, asked, offset = json.loads(packed)
            found = cls(str(of_log), str(asked), offset)
        except (ValueError, TypeError):
            raise _refused("it is no cursor of the explorer") from None
        if version != _VERSION or not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise _refused("it is no cursor of this release")
        if found.question != question:
            raise _refused("it belongs to another question: another filter, order, sink or view")
        if found.log_id != log_id:
            raise _refused("the log was recreated since")
        return found


def digest(question: Any) -> str:
    """A short name for a question, made of what is asked."""
    told = json.dumps(question, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(told.encode(), digest_size=9).hexdigest()


def _refused(why: str) -> ConfigError:
    return ConfigError(
        "explore.cursor", f"the cursor cannot be used: {why}", hint="ask without a cursor, from the beginning"
    )
