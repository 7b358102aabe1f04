"""Tombstones leave an index when nothing older can come any more; which those are is decided elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from elasticsearch import AsyncElasticsearch

from projections.documents import DELETED, DELETED_AT, encode_json
from projections.elasticsearch_answers import failure_type
from projections.elasticsearch_bulk import Post
from projections.elasticsearch_errors import translated
from tidegate_kernel.errors import Transient

# Gone, gone already, or a newer version by now.
_SETTLED = (200, 404, 409)


async def purge_tombstones(client: AsyncElasticsearch, post: Post, index: str, *, before: datetime, most: int) -> int:
    """Up to `most` tombstones of `index` written before then are gone, the oldest first; returns how many.

    Each is deleted with its own version: what is newer stays. Those without a time, of an old release, stay for ever.
    Raises Transient where the server took some of them only, Misconfigured.
    """
    with translated(index):
        # A search sees what was refreshed. Without it a tombstone would be found that is a document by now, and the
        # chunk before this one would be found again.
        await client.indices.refresh(index=index)
        found = await client.search(
            index=index,
            query={"bool": {"filter": [{"term": {DELETED: True}}, {"range": {DELETED_AT: {"lt": _millis(before)}}}]}},
            sort=[{DELETED_AT: "asc"}],
            size=most,
            version=True,
            source=False,
        )
    hits = found["hits"]["hits"]
    return await _delete(post, index, hits) if hits else 0


async def _delete(post: Post, index: str, hits: list[dict[str, Any]]) -> int:
    answer = await post(b"".join(map(_line, hits)))
    if answer.status != 200:
        raise Transient(f"index {index!r} purged no tombstones: {answer.status} {failure_type(answer.body)}".rstrip())
    statuses = [item["delete"]["status"] for item in answer.body["items"]]
    if left := [status for status in statuses if status not in _SETTLED]:
        raise Transient(f"index {index!r} put off {len(left)} of {len(hits)} tombstones: {left[0]}")
    return statuses.count(200)


def _line(hit: dict[str, Any]) -> bytes:
    # Greater or equal: the tombstone itself goes, a newer document does not.
    action = {"_id": hit["_id"], "version": hit["_version"], "version_type": "external_gte"}
    return encode_json({"delete": action}) + b"\n"


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
