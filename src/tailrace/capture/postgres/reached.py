"""What a log keeps of its progress beside its position, in the position's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.capture.postgres.messages import lsn_number, lsn_text


@dataclass(frozen=True)
class Reached:
    """`end`: where the log's newest change ends; its position is there or later, past WAL that has no change for it.
    `lsn`, `at_us`, `timeline`: where, when and on which timeline the newest commit was that it met; 0: none yet."""

    end: int
    lsn: int = 0
    at_us: int = 0
    timeline: str = ""

    @classmethod
    def of(cls, resume: Mapping[str, str]) -> Reached:
        """As it was written down; a log of an older version did not."""
        end = lsn_number(resume.get("end", resume["lsn"]))
        if "commit" not in resume:
            return cls(end)
        return cls(end, lsn_number(resume["commit"]), int(resume["commit_us"]), resume["commit_timeline"])

    def fields(self) -> dict[str, str]:
        """For the log's position."""
        end = {"end": lsn_text(self.end)}
        if not self.lsn:
            return end
        commit = {"commit": lsn_text(self.lsn), "commit_us": str(self.at_us), "commit_timeline": self.timeline}
        return end | commit
