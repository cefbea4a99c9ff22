"""The log as a table sink sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession

from tailrace.changelog import Limits, LogReader, Subscribers
from tailrace.schema import TableSchema
from tailrace.spark.source import LogSource, Options


class SparkLog:
    """Implements `sinks.tables.Log`. `columns` are what the sink asked for."""

    def __init__(
        self, spark: SparkSession, path: Path, columns: Mapping[str, Column], limits: Limits, subscriber: str
    ) -> None:
        self._spark, self._path, self._columns, self._limits = spark, path, columns, limits
        self._subscriber = subscriber
        self._reader = LogReader(path)
        spark.dataSource.register(LogSource)

    @property
    def log_id(self) -> str:
        return self._reader.log_id

    @property
    def earliest(self) -> int:
        return self._reader.earliest

    def versions(self) -> Mapping[int, TableSchema]:
        self._reader.refresh()
        self._reader.forget(self._reader.end)
        return self._reader.schemas

    def ends(self, start: int, end: int) -> list[int]:
        reader, found = LogReader(self._path, start), []
        while start < end:
            reader.forget(start)
            reader.refresh()
            start = min(end, max(reader.cut(start, self._limits), start + 1))
            found.append(start)
        return found

    def read(self, start: int, end: int) -> DataFrame:
        tasks = self._spark.sparkContext.defaultParallelism
        options = Options(str(self._path), tasks=tasks, start=start, end=end, log=self.log_id).as_text()
        return self._spark.read.format(LogSource.name()).options(**options).load().select(*self._columns.values())

    def retain(self, table: str, offset: int | None) -> None:
        subscribers, name = Subscribers(self._path), f"{self._subscriber}/{table}"
        if offset is None:
            subscribers.forget(name)
        else:
            subscribers.report(name, offset, required=True)
