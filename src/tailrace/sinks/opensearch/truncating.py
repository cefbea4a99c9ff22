"""A truncate as deletes: the documents of an index, which the change itself does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.sinks.opensearch.cluster import Cluster, path_of
from tailrace.sinks.opensearch.documents import Action

_AT_ONCE = 1000
_KEPT = "2m"
"""How long the server keeps a search open between two of its pages."""


def deletes(cluster: Cluster, index: str, row: int, version: int) -> Iterator[list[Action]]:
    """Deletes of all documents that are there, with the truncate's version: what is newer than it stays."""
    cluster.ask("POST", path_of(index, "_refresh"))
    told = "filter_path=_scroll_id,hits.hits._id"
    asked: dict[str, Any] = {"size": _AT_ONCE, "sort": ["_doc"], "_source": False}
    page = cluster.ask("POST", path_of(index, "_search") + f"?scroll={_KEPT}&{told}", asked).body
    while hits := page.get("hits", {}).get("hits"):
        yield [Action(row, (index, hit["_id"]), version, None) for hit in hits]
        following = {"scroll": _KEPT, "scroll_id": page["_scroll_id"]}
        page = cluster.ask("POST", f"/_search/scroll?{told}", following).body
    cluster.ask("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]}, also=(404,))
