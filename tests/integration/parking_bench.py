"""Owners of several partitions of one job that parks, on real Postgres, and what their tables hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from consumers.batch import Attempts, Batch, Outcome
from consumers.positions import Position
from tests.integration.road import TOPIC_ID, MakeRoad, SentRecord, record
from tidegate import (
    CloudEvents,
    ConsumerJob,
    Context,
    Event,
    Handler,
    Json,
    Rejected,
    RetryPolicy,
    Topic,
    handle,
    on,
)
from tidegate.assembly import JobParts
from tidegate_kernel.errors import Poison, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool

TOPICS = [Topic(name, format=Json(), envelope=CloudEvents()) for name in ("orders", "returns")]
GARBAGE = b"\xff{"
BAD = b'{"n":-1}'
GOOD = b'{"n":1}'


class Noted(msgspec.Struct):
    n: int
    customer: str = ""


@dataclass(frozen=True)
class Note:
    id: str
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.id, event.data.n)


async def note(command: Note, ctx: Context[None]) -> None:
    """Notes the event; refuses a negative one."""
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)
    if command.n < 0:
        raise Rejected("negative")


def parking_job(**more: Any) -> ConsumerJob:
    return ConsumerJob(
        code="notes",
        topics=TOPICS,
        unlisted="skip",
        runbook="-",
        events=[on("noted", Noted, to_note)],
        retry=RetryPolicy(attempts=3, unexpected_attempts=2),
        **more,
    )


def of_key(offset: int, key: bytes | None, value: bytes | None = GOOD, **more: Any) -> SentRecord:
    """An event `e<offset>` of a key."""
    return record(offset, value, key=key, **more)


@dataclass
class Bench:
    """Batches are given to any partition of the job; each partition is its own owner's, at the offset it came to."""

    parts: JobParts
    pool: Pool
    places: dict[TopicPartition, Position] = field(default_factory=dict)

    async def settle(
        self, records: Sequence[SentRecord], *, topic: str = "orders", partition: int = 0, crashed: Poison | None = None
    ) -> Outcome:
        """The batch is tried until it settles, as a lane does, without the pauses."""
        place, attempts = TopicPartition(topic, partition), Attempts()
        records = [replace(each, topic=topic, partition=partition) for each in records]
        while True:
            try:
                batch = Batch(
                    self.parts.steward.fence(place, await self.position(place, records[0].offset)),
                    TOPIC_ID,
                    records,
                    records[-1].offset + 1,
                    attempts,
                    crashed,
                )
                outcome = await self.parts.pipeline.handle(batch)
            except Transient:
                continue
            end = batch.next_offset if outcome.stop is None else outcome.stop.offset
            self.places[place] = replace(self.places[place], next_offset=end)
            return outcome

    async def position(self, place: TopicPartition, first: int) -> Position:
        """Where the partition stands; it begins where its first record is."""
        if place not in self.places:
            positions = self.parts.steward._positions
            await positions.begin({place: Position(0, first, TOPIC_ID)})
            taken = await positions.take_over(place)
            assert taken is not None
            self.places[place] = taken
        return self.places[place]

    async def effects(self) -> list[str]:
        return [row["id"] for row in await self.pool.fetch("SELECT id FROM effect ORDER BY ctid")]

    async def letters(self) -> list[int]:
        return [r["offset"] for r in await self.pool.fetch('SELECT "offset" FROM tidegate.dead_letter ORDER BY 1')]

    async def parked(self) -> list[str]:
        """Ids of what waits, key by key in the order of its sequence."""
        rows = await self.pool.fetch('SELECT event_id FROM tidegate.parked ORDER BY topic, order_key, turn, "offset"')
        return [row["event_id"] for row in rows]

    async def blocked_keys(self) -> int:
        count: int = await self.pool.fetchval("SELECT count(*) FROM tidegate.blocked_key")
        return count


async def make_bench(make_road: MakeRoad, handlers: Sequence[Handler] | None = None, **job: Any) -> Bench:
    road = await make_road(parking_job(**job), [handle(Note, note)] if handlers is None else handlers)
    bench = Bench(road.parts, road.pool)
    bench.places[TopicPartition("orders", 0)] = road.position
    return bench
