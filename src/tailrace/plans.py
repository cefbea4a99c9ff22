"""How Spark runs a plan: compiled for many rows, interpreted for few."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = 5_000
"""Compiling a plan takes longer than running it on fewer rows."""


def suit(session: SparkSession, *, few: bool) -> None:
    """Set the session up for plans over few rows, or many."""
    session.conf.set("spark.sql.codegen.wholeStage", str(not few).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if few else "FALLBACK")
