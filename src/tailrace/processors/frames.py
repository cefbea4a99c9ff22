"""Processors that need Spark: over DataFrames of changes, where others work on batches in tasks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from tailrace.contracts import Place, Processor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FrameProcessor(Processor):
    """Works on DataFrames of changes, on the driver, which plans what tasks do."""

    @abstractmethod
    def transform(self, changes: DataFrame, place: Place) -> DataFrame:
        """Changes in, changes out, both in the columns of `change.PROCESSED`, in any order. What is not wanted stays
        and gets a reason in `dropped`. Raises `ProcessorError` where it cannot work; running the result may fail."""
