"""The audit's second home: every row is also published to a topic, which a restore of the database does not touch.

Rows leave through the outbox, in the transaction that appended them. Several databases may share a Kafka: each chain
has an id. A copy of a database (for a rehearsal, say) carries its id along, and shows here as rows that differ.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import NamedTuple

from tidegate_kernel.audit_chain import Chain
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import LogRange, RecordSource, SourceFailure

_QUERIES = load_queries(__package__)

AUDIT_TOPIC = "tidegate.audit"
"""Named in migration 0002 as well. One for all services: a database has one audit, whoever shares it."""

_BATCH = 500
_FETCH_SECONDS = 1.0
_SILENCE_SECONDS = 15.0


class Anchor(NamedTuple):
    """A row as the topic knows it."""

    chain: str
    seq: int
    hash: str
    told: str
    database: str


@dataclass(slots=True)
class Comparison:
    """Table and topic side by side.

    `differing` are rows that the topic knows otherwise, each with what the table has in its place. `former` are other
    chains that this very database wrote, by the last row of each.
    """

    found: set[int] = field(default_factory=set)
    differing: dict[Anchor, str | None] = field(default_factory=dict)
    former: dict[str, int] = field(default_factory=dict)

    @property
    def breaks(self) -> list[str]:
        """What does not agree, for a person."""
        return [*starmap(_began_anew, self.former.items()), *starmap(_difference, self.differing.items())]

    def unanchored(self, chain: Chain) -> int:
        """How many rows the table has alone, beside those that wait in the outbox."""
        return max(0, chain.rows - sum(seq <= chain.end.seq for seq in self.found) - chain.unpublished)


async def compare_with_topic(
    connection: Connection, source: RecordSource, chain: Chain, *, clock: Clock, after: int = 0
) -> Comparison:
    """Reads the whole topic and returns how the table's rows after `after` agree with it.

    `source` reads the topic's partitions. Raises SourceFailure if it falls silent before its end, Transient.
    """
    comparison = Comparison()
    async for records in _whole_log(source, clock):
        anchors = [anchor for record in records if (anchor := _anchor(record)) is not None]
        await _compare(connection, [each for each in anchors if _is_expected(each, chain)], comparison, after)
        if after == 0:  # another chain was there before row 1 of this one
            _note_former(anchors, chain, comparison)
    return comparison


def _is_expected(anchor: Anchor, chain: Chain) -> bool:
    """Whether the table has to have the row. Of those that have left by their retention only the last is known."""
    if anchor.chain != str(chain.id) or anchor.seq < chain.cut.seq:
        return False
    return anchor.seq != chain.cut.seq or anchor.hash != chain.cut.hash.hex()


async def _compare(connection: Connection, anchors: Sequence[Anchor], comparison: Comparison, after: int) -> None:
    with translated_errors("compare audit"):
        rows = await connection.fetch(_QUERIES["audit_hashes"], [anchor.seq for anchor in anchors])
    held = {row["seq"]: row["hash"].hex() for row in rows}
    for anchor in anchors:
        if held.get(anchor.seq) == anchor.hash:
            comparison.found.add(anchor.seq)
        elif anchor.seq > after:
            comparison.differing[anchor] = held.get(anchor.seq)


def _note_former(anchors: Sequence[Anchor], chain: Chain, comparison: Comparison) -> None:
    """Whoever owns the table can replace it together with the chain's id: then no row differs from the topic's."""
    here = _place(chain.database)
    for anchor in anchors:
        if here is not None and anchor.chain != str(chain.id) and _place(anchor.database) == here:
            comparison.former[anchor.chain] = max(anchor.seq, comparison.former.get(anchor.chain, 0))


def _place(identity: str) -> tuple[str, str] | None:
    """System and database of an identity; None where the server keeps them to itself. A failover changes neither."""
    parts = identity.split(":")
    return (parts[0], parts[2]) if len(parts) == 3 else None


def _began_anew(chain: str, last: int) -> str:
    return (
        f"the topic has rows up to {last} of chain {chain}, which this database wrote too: its audit was begun anew, "
        "with another id, after the schema was dropped or all rows were replaced"
    )


def _difference(anchor: Anchor, held: str | None) -> str:
    has = "the table has none" if held is None else f"the table has {held[:16]}"
    return (
        f"row {anchor.seq} is in the topic with hash {anchor.hash[:16]} ({anchor.told}), {has}: the database was "
        f"restored to an earlier time, or its rows were rewritten (the topic's row is of database {anchor.database})"
    )


async def _whole_log(source: RecordSource, clock: Clock) -> AsyncIterator[Sequence[Record]]:
    """Every record that the assigned partitions hold now, in batches."""
    ranges = dict(await source.ranges(source.assignment()))
    for partition, held in ranges.items():
        source.seek(partition, held.start)
    last_moved = clock.monotonic()
    while unread := _unread(source, ranges):
        batches = await source.fetch(unread, max_records=_BATCH, timeout=_FETCH_SECONDS)
        for records in batches.values():
            last_moved = clock.monotonic()
            yield records
        if clock.monotonic() - last_moved > _SILENCE_SECONDS:
            raise SourceFailure(f"topic {AUDIT_TOPIC!r} fell silent before its end")


def _unread(source: RecordSource, ranges: dict[TopicPartition, LogRange]) -> list[TopicPartition]:
    return [p for p, held in ranges.items() if held.start < held.end and (source.drained_to(p) or 0) < held.end]


def _anchor(record: Record) -> Anchor | None:
    """None for a record that is none of ours."""
    try:
        told = json.loads(record.value or b"")
        row, seq = told["row"], int(told["seq"])
        if not 0 < seq < 2**63:
            return None
        summary = f"{row['action']} of {row['target']!r} by {row['actor']} at {row['at']}"
        return Anchor(str(told["chain"]), seq, str(told["hash"]), summary, str(row["database_identity"]))
    except (ValueError, KeyError, TypeError):
        return None
