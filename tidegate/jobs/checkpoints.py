"""Checkpoints: named offsets per partition, from which a backfill can start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import RecordSource

_QUERIES = load_queries("tidegate.jobs")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Offsets = Mapping[TopicPartition, tuple[int, UUID]]
"""Next offset and topic id per partition. The id tells whether the offset still means the same record."""


class Place(Enum):
    """Ends of a partition's log."""

    BEGINNING = auto()
    END = auto()


class CheckpointSummary(NamedTuple):
    """A checkpoint without its offsets."""

    name: str
    created_at: datetime
    topics: Sequence[str]
    partitions: int


async def create_checkpoint(database: Connection | Pool, actor: Actor, name: str, offsets: Offsets) -> None:
    """The checkpoint is stored. Raises Denied, Misconfigured for a bad or taken name, Transient if Postgres is away."""
    places = {str(p): offset for p, (offset, _) in sorted(offsets.items())}
    deed = Deed(Action.CHECKPOINT_CREATE, name, parameters={"offsets": places})
    async with permitted(database, actor, deed) as connection:
        if not _NAME.fullmatch(name):
            raise Misconfigured(f"checkpoint name {name!r} may hold letters, digits, '.', '_' and '-', at most 100")
        if not offsets:
            raise Misconfigured(f"checkpoint {name!r} would hold no partition")
        await _insert(connection, name, offsets)


async def _insert(connection: Connection, name: str, offsets: Offsets) -> None:
    rows = sorted(offsets.items())
    columns = (
        [partition.topic for partition, _ in rows],
        [partition.partition for partition, _ in rows],
        [topic_id for _, (_, topic_id) in rows],
        [offset for _, (offset, _) in rows],
    )
    try:
        await connection.execute(_QUERIES["create_checkpoint"], name, *columns)
    except asyncpg.UniqueViolationError as error:
        raise Misconfigured(
            f"checkpoint {name!r} exists already; choose another name, or 'tidegate checkpoint delete {name} --yes'"
        ) from error


async def read_checkpoint(database: Connection | Pool, name: str) -> Offsets:
    """Returns the offsets of the checkpoint. Raises Misconfigured listing those there are."""
    with translated_errors("read checkpoint"):
        rows = await database.fetch(_QUERIES["read_checkpoint"], name)
        if not rows:
            known = ", ".join(row["name"] for row in await database.fetch(_QUERIES["list_checkpoints"]))
            raise Misconfigured(f"there is no checkpoint {name!r}; there are: {known or 'none'}")
    return {TopicPartition(r["topic"], r["partition"]): (r["next_offset"], r["topic_id"]) for r in rows}


async def list_checkpoints(connection: Connection) -> Sequence[CheckpointSummary]:
    """Returns all checkpoints, newest first."""
    with translated_errors("list checkpoints"):
        rows = await connection.fetch(_QUERIES["list_checkpoints"])
    return [CheckpointSummary(*row.values()) for row in rows]


async def delete_checkpoint(database: Connection | Pool, actor: Actor, name: str) -> None:
    """The checkpoint is gone, whether it was there or not. Raises Denied, Transient."""
    async with permitted(database, actor, Deed(Action.CHECKPOINT_DELETE, name)) as connection:
        await connection.execute(_QUERIES["delete_checkpoint"], name)


async def offsets_of_job(connection: Connection, *, service: str, code: str) -> Offsets:
    """Where the job's live consumer stands now. Raises Misconfigured if it was never started."""
    with translated_errors("read positions"):
        rows = await connection.fetch(_QUERIES["live_positions"], service, code)
    if not rows:
        raise Misconfigured(f"job {code!r} has no positions: it was never started; say --at beginning, end or a time")
    return {TopicPartition(r["topic"], r["partition"]): (r["next_offset"], r["topic_id"]) for r in rows}


async def offsets_at(reader: RecordSource, topics: Sequence[str], place: Place | datetime) -> Offsets:
    """Offsets of every partition of `topics` at an end of its log, or at the first record written at a time or later.

    Raises Misconfigured for a topic that does not exist, SourceFailure if Kafka does not answer.
    """
    offsets: dict[TopicPartition, tuple[int, UUID]] = {}
    for topic in topics:
        partitions = await reader.partitions_of(topic)
        if not partitions:
            raise Misconfigured(f"kafka has no topic {topic!r}; run 'tidegate topics create'")
        topic_id = await reader.topic_id(topic)
        found = await _find(reader, partitions, place)
        offsets |= {partition: (offset, topic_id) for partition, offset in found.items()}
    return offsets


async def _find(
    reader: RecordSource, partitions: frozenset[TopicPartition], place: Place | datetime
) -> Mapping[TopicPartition, int]:
    if isinstance(place, datetime):
        return await reader.offsets_at(partitions, int(place.timestamp() * 1000))
    ranges = await reader.ranges(partitions)
    return {p: held.start if place is Place.BEGINNING else held.end for p, held in ranges.items()}
