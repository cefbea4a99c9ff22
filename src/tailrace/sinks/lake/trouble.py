"""Whose trouble a failure is: one table's, which then halts alone, or the whole sink's.

Only what is known to concern every table stops the sink. All else, also what nobody thought of, is blamed on the table
that was being written.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from tailrace.config import redact
from tailrace.errors import Action, ProcessorError, SinkError, TailraceError, decide
from tailrace.jvm import reason, whole_story
from tailrace.machine.space import full_disk
from tailrace.passage import find

WAITS = re.compile(
    r"\.(Connect|ConnectTimeout|NoRouteToHost|NoHttpResponse|SdkClient|ServiceFailure|ServiceUnavailable|Socket"
    r"|SocketTimeout|SQLNonTransientConnection|SQLTransientConnection|UnknownHost)Exception\b"
    r"|Status Code: 5\d\d|database is locked"
)
"""How the JVM says that storage or catalog do not answer. Classes are told from a user's names by the package before
them."""
STOPS = re.compile(
    r'tailrace-error:(?!\{"kind": "ProcessorError")'  # an error of the log's, raised by a task
    r"|SparkContext was shut down|stopped SparkContext|cancelled as part of cancellation of all jobs"
    r"|\.InterruptedException\b|\.OutOfMemoryError\b"
    r"|ExecutorLostFailure|Python worker exited unexpectedly|Python worker failed to connect back"
    r"|\.NotAuthorizedException\b|InvalidAccessKeyId|SignatureDoesNotMatch"
)
"""How it says that Spark ends or is short of something, that the log is damaged, or that nobody is let in."""
OF_THE_SINK = frozenset({"sink.catalog_forgets"})
"""Errors of a sink's that do not heal and are of its configuration."""


def of_the_sink(error: Exception, sink: str) -> Exception | None:
    """What to raise where `error` concerns every table; None: it is the table's own."""
    if isinstance(error, SinkError):
        return error if decide(error) is Action.RETRY or error.code in OF_THE_SINK else None
    if isinstance(error, ProcessorError):
        return None
    if isinstance(error, PySparkException | Py4JJavaError):
        return _of_java(error, sink)
    # What is left of Py4J's errors says that the JVM is gone. This process touches no files but the log's.
    if isinstance(error, TailraceError | Py4JError | OSError | MemoryError):
        return full_disk(error, sink) or error
    return None


def of_the_table(error: Exception, table: str) -> TailraceError:
    """Why a table halts."""
    if isinstance(error, SinkError | ProcessorError):
        return error
    known = find(whole_story(error))
    if known is not None:
        return known
    return SinkError(
        "sink.table_failed",
        f"{table} cannot be written: {reason(error)}",
        hint="mend what it names, at the source or in the lake, then start again: it catches up",
        where=table,
    )


def _of_java(error: Exception, sink: str) -> Exception | None:
    told = whole_story(error)
    outage = next((line for line in told.splitlines() if WAITS.search(line)), None)
    if outage is not None:
        hint = "it is tried again until it answers"
        return SinkError("sink.unavailable", redact(outage.strip()), hint=hint, where=sink)
    return full_disk(Exception(told), sink) or (error if STOPS.search(told) else None)
