"""What the stages need of Spark's JVM: its errors as a person would want them told, and how it runs a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = 5_000
"""Compiling a plan takes longer than running it on fewer rows."""

LONGEST = 2_000
"""Characters of a reason: some quote the row that they are about."""

JSON_LIMITS = {"maxNestingDepth": "10000", "maxNumLen": str(1 << 20), "maxStringLen": str((1 << 31) - 1)}
"""Options for Spark's parser of row images: what is larger than its own limits is a value like any other."""

_CALLING = "An error occurred while calling "
_CAUSE = "Caused by: "


def reason(error: BaseException) -> str:
    """One line: what failed and, where Java gives one, its first cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line.removeprefix(": ") for line in lines if line and not line.startswith(_CALLING)]
    causes = [line.removeprefix(_CAUSE) for line in told if line.startswith(_CAUSE)]
    first = told[0] if told else type(error).__name__
    return redact(f"{first} ({causes[-1]})" if causes and causes[-1] not in first else first)[:LONGEST]


def whole_story(error: BaseException) -> str:
    """All that Java told: the error, its causes, and where they came from. Not for people."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def activate(session: SparkSession) -> None:
    """Make a session the calling thread's. Spark parses names and expressions under the settings of the thread's
    session; where it has none, under Spark's defaults, which take `${…}` for a variable."""
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(  # type: ignore[union-attr]
        session._jsparkSession
    )


def compile_plans(session: SparkSession, *, few: bool) -> None:
    """Compile plans over many rows, interpret those over few."""
    session.conf.set("spark.sql.codegen.wholeStage", str(not few).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if few else "FALLBACK")
