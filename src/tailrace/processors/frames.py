"""Processors that want Spark's own frames, for what only Spark can give: its SQL, and tables read through it."""

from __future__ import annotations

from abc import abstractmethod

from pyspark.sql import DataFrame

from tailrace.contracts import Place, Processor


class FrameProcessor(Processor):
    """Works on a batch as a DataFrame. Its expressions must give the same answer for the same change."""

    @abstractmethod
    def transform(self, changes: DataFrame, place: Place) -> DataFrame:
        """`changes` has the columns of `change.PROCESSED`, and so has the answer. A change that is not wanted stays and
        gets a reason in `dropped`."""
