"""OpenSearch and Elasticsearch: rows or changes as documents, through the bulk interface that both have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import MIB, ByteSize, Duration, Reference, Template, parse_template
from tailrace.contracts import Check, Delivery, RecordSink, Span, Subject
from tailrace.sinks.http.addresses import problem_of_url
from tailrace.sinks.http.connection import HttpTls, context_for
from tailrace.sinks.http.logins import ApiKeyAuth, BasicAuth, BearerAuth
from tailrace.sinks.opensearch.check import check_cluster
from tailrace.sinks.opensearch.cluster import Access, connected
from tailrace.sinks.opensearch.documents import Form
from tailrace.sinks.opensearch.indexes import Wanted, found, problem_of_index
from tailrace.sinks.opensearch.marks import Marks
from tailrace.sinks.opensearch.writer import OpenSearchWriter, Sizes

LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a server that says nothing."""


def _addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    for url in urls:
        problem = problem_of_url(url) or ("it has a query" if "?" in url else None)
        if problem:
            raise _refused(
                f"not the address of a cluster: {problem}", "write it as https://HOST:9200; logins are `auth`"
            )
    return tuple(url.rstrip("/") for url in urls)


def _index_name(name: str) -> str:
    problem = problem_of_index(name)
    if problem:
        raise _refused(f"not the name of an index: {problem}", "use small letters, digits and -")
    return name


class OpenSearchSink(RecordSink):
    """Keeps one document for each row, or one for each change, in the indices of an OpenSearch cluster.

    Every document carries an external version, made of the log's generation and the change's offset in the log, and the
    cluster takes a newer one only. So a repeat changes nothing and cannot go back in time, whatever was sent before and
    whatever arrives late. A conflict of versions is a repeat only where this sink may have delivered before, which a
    document of its own in `mark_index` tells; anywhere else somebody else's document is newer, and the sink stops with
    `sink.version_ahead`. A new log gets the next generation: its changes are newer than all of the log before, to which
    there is no way back. A batch is not atomic; its documents are found after the index's next refresh.

    With `mode: mirror` a document is the row, its id the value of the row's key (of several columns a JSON array of
    them), and a delete deletes it. A document is never half a row: a large value that the source did not send, for it
    did not change, is taken from the document that is there, also when the row gets another key; where there is none,
    the change is `sink.rejected`. An index remembers the versions of deleted documents for `gc_deletes`: if a batch
    comes again later than that, or after a restart of the cluster, a row that it creates and deletes may be found
    between the two. With `soft_delete` it is not. A truncate does not name its rows: see `truncates`. Logical messages
    are not kept.

    With `mode: events` a document is a change in its envelope, and its id the event's.

    A document that the cluster refuses for what it is (its mapping, its size) is `sink.rejected`, and all others go on;
    429 and 5xx are tried again. A change that gives no index or no id is `sink.unroutable`.
    """

    urls: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Addresses of one cluster. The next one is taken where one fails.",
            examples=[["https://search-1:9200", "https://search-2:9200"]],
        ),
        AfterValidator(_addresses),
    ]
    mode: Annotated[
        Literal["mirror", "events"],
        Field(description="`mirror`: documents are the rows of the source; `events`: each change is a document."),
    ] = "mirror"
    index: Annotated[
        Template,
        Field(
            min_length=1,
            description="The index of each document. A mirror needs one that all changes of a row give: names of the "
            "source, or columns of the key.",
            examples=["shop-${source.table}"],
        ),
    ]
    document_id: Annotated[
        Template | None,
        Field(
            min_length=1,
            description="With `mode: mirror`: the id of a row's document. Absent: its key. An index that several "
            "tables share needs one that tells their rows apart.",
            examples=["${source.table}-${key.id}"],
        ),
    ] = None
    mapping: Annotated[
        dict[str, Any],
        Field(
            description="Mappings of the indices: those the sink makes have them, to others they are added.",
            examples=[{"properties": {"price": {"type": "scaled_float", "scaling_factor": 100}}}],
        ),
    ] = Field(default_factory=dict)
    settings: Annotated[
        dict[str, Any],
        Field(description="Settings of the indices that the sink makes.", examples=[{"index.number_of_shards": 3}]),
    ] = Field(default_factory=dict)
    soft_delete: Annotated[
        bool,
        Field(
            description="With `mode: mirror`: a deleted row stays as a document of its key, with `_is_deleted` true, "
            "for searches to leave out."
        ),
    ] = False
    gc_deletes: Annotated[
        Duration,
        Field(
            description="With `mode: mirror`: how long an index must remember deletes, at least (`index.gc_deletes`): "
            "longer than a failed batch takes to come again. Indices the sink makes do; another with less stops it."
        ),
    ] = timedelta(minutes=15)
    truncates: Annotated[
        Literal["refuse", "keep", "delete"],
        Field(
            description="With `mode: mirror`: `refuse` a truncate, for somebody to see to the documents of its rows; "
            "`keep` these; or `delete` all documents of the index, one by one: it must be the table's own."
        ),
    ] = "refuse"
    mark_index: Annotated[
        str, Field(description="The index that has the sink's marks; made when missing."), AfterValidator(_index_name)
    ] = "tailrace-marks"
    batch_size: Annotated[int, Field(ge=1, description="Documents of a request, at most.")] = 2000
    batch_bytes: Annotated[
        ByteSize,
        Field(
            gt=0,
            description="Bytes of documents in a request, about; a larger document is alone. The cluster's own bound "
            "is `http.max_content_length`.",
        ),
    ] = 5 * MIB
    auth: Annotated[
        BasicAuth | ApiKeyAuth | BearerAuth | None,
        Field(description="The login of every request.", discriminator="type"),
    ] = None
    tls: Annotated[HttpTls, Field(description="TLS options, for https.")] = HttpTls()
    send_timeout_secs: Annotated[
        float, Field(gt=0, le=600, description="Seconds without an answer after which the batch is tried again.")
    ] = 30
    connect_timeout_secs: Annotated[
        float, Field(gt=0, le=600, description="Seconds after which a connection is given up.")
    ] = 5

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        if self.mode == "events":
            for name in ("document_id", "soft_delete", "truncates", "gc_deletes"):
                if name in self.model_fields_set:
                    raise _refused(f"`{name}` means nothing with `mode: events`", f"leave out `{name}`")
            return self
        for template in (self.index, self.document_id or ""):
            _refuse_unsteady(template)
        if self.document_id is None and ("source", "table") not in _paths(self.index):
            hint = "put `${source.table}` into `index`, or set `document_id`, such as `${source.table}-${key.id}`"
            raise _refused("rows of several tables would share documents", hint)
        if self.truncates == "delete" and (self.soft_delete or not _of_one_table(self.index)):
            hint = "name the index by `${source.table}` and other names of the source, without `soft_delete`"
            raise _refused("`truncates: delete` needs an index of each table, and real deletes", hint)
        longest = self.retry.max_wait_seconds or 0
        if not self.soft_delete and self.gc_deletes.total_seconds() <= longest:
            raise _refused("`gc_deletes` is not longer than the longest wait of `retry`", "raise it, or lower that")
        return self

    @property
    def keeps(self) -> Literal["events", "state"]:  # type: ignore[override]
        return "events" if self.mode == "events" else "state"

    def columns(self) -> tuple[str, ...]:
        common = ("seq", "schema", "table", "key", "position", "event_id")
        return common if self.mode == "events" else (*common, "op", "after", "unchanged", "headers")

    def wants_value(self) -> bool:
        return self.mode == "events"

    def routes(self) -> dict[str, str]:
        routes = {} if self.static_index() is not None else {"index": self.index}
        return routes if self.document_id is None else {**routes, "document_id": self.document_id}

    def routed(self) -> dict[str, str]:
        return {"index": "index"} if self.mode == "events" else {"index": "index", "document_id": "key"}

    def tasks(self) -> int:
        return 1

    def static_index(self) -> str | None:
        """The index, where every record goes to the same one."""
        match parse_template(self.index):
            case (str(name),):
                return name
            case _:
                return None

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_cluster(subject, self, delivery)

    def prepare(self, delivery: Delivery) -> None:
        context_for(self.tls)
        with connected(self.access(delivery)) as cluster:
            Marks(cluster, self.mark_index, delivery, self.id).make()

    def warnings(self, delivery: Delivery) -> tuple[str, ...]:
        with connected(self.access(delivery)) as cluster:
            late = [index.name for index in found(cluster, self.pattern()) if not index.syncs]
        text = "what the cluster acknowledges in {} is not on its disk yet (`index.translog.durability: async`)"
        return (text.format(", ".join(sorted(late))),) if late else ()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        with connected(self.access(delivery)) as cluster:
            return Marks(cluster, self.mark_index, delivery, self.id).mark(log_id)

    def open(self, delivery: Delivery, span: Span, task: int) -> OpenSearchWriter:
        sizes = Sizes(self.batch_size, self.batch_bytes)
        return OpenSearchWriter(
            self.access(delivery), self._form(), self.wanted(), sizes, self.mark_index, delivery, span
        )

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        if span.letters:
            return
        with connected(self.access(delivery)) as cluster:
            Marks(cluster, self.mark_index, delivery, self.id).finish(span)

    def access(self, delivery: Delivery) -> Access:
        """How the cluster is reached."""
        most = LAST_WAIT_S if delivery.ending() else float("inf")
        times = (min(self.connect_timeout_secs, most), min(self.send_timeout_secs, most))
        return Access(self.id, self.urls, self.tls, None if self.auth is None else self.auth.login(), *times)

    def wanted(self) -> Wanted:
        """What indices must have."""
        forgets = self.mode == "mirror" and not self.soft_delete
        return Wanted(self.gc_deletes.total_seconds() if forgets else 0, self.settings, self.mapping)

    def pattern(self) -> str:
        """All indices that documents may go to."""
        parts = ["*" if isinstance(part, Reference) else part for part in parse_template(self.index)]
        return "".join(parts)

    def _form(self) -> Form:
        return Form(
            self.mode,
            self.index,
            self.static_index(),
            self.document_id,
            self.soft_delete,
            self.truncates,
        )


class ElasticsearchSink(OpenSearchSink):
    """Keeps one document for each row, or one for each change, in the indices of an Elasticsearch cluster.

    It is the sink `opensearch`, by its other name: requests that both servers have are all it sends, and a repeat is
    absorbed in the same way, by external versions. It is tried against OpenSearch. Against Elasticsearch it is
    unverified until there is a server to try it with.
    """


def _paths(template: str) -> set[tuple[str, ...]]:
    return {part.path for part in parse_template(template) if isinstance(part, Reference)}


def _of_one_table(index: str) -> bool:
    """Whether all rows of a table are in one index, without those of another table."""
    paths = _paths(index)
    return ("source", "table") in paths and all(path[0] != "key" for path in paths)


def _refuse_unsteady(template: str) -> None:
    """A row's document must have the same place for all its changes, the delete included."""
    for path in _paths(template):
        match path:
            case ("source", "db" | "schema" | "table" | "name" | "connector") | ("key", *_) | ("tenant_id",):
                pass
            case ("before" | "after" as image, name, *_):
                hint = f"use `${{key.{name}}}`, if it is in the table's key"
                raise _refused(f"not every change has `{image}.{name}`: a delete would miss its document", hint)
            case _:
                hint = "use names of the source, and columns of the key"
                raise _refused(f"`{'.'.join(path)}` differs from change to change of a row", hint)


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
