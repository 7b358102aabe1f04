"""A job's road on real Postgres, driven batch by batch: what the loop does, without Kafka."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg

from consumers.batch import Attempts, Batch, Outcome
from consumers.positions import Position
from tidegate.assembly import JobParts
from tidegate_kernel.event import Headers, TopicPartition
from tidegate_kernel.postgres import Pool

TOPIC_ID = UUID(int=7)
PARTITION = TopicPartition("orders", 0)
OWN_KEY = b"a key of its own"


@dataclass(frozen=True)
class SentRecord:
    """A `Record` as the client would hand it over."""

    offset: int
    value: bytes | None
    headers: Headers
    key: bytes | None = b"k"
    topic: str = "orders"
    partition: int = 0
    timestamp: int = 1_700_000_000_000


def record(
    offset: int,
    value: bytes | None = b'{"n":1}',
    *,
    id: str | None = None,
    type: str = "noted",
    key: bytes | None = OWN_KEY,
) -> SentRecord:
    """A binary CloudEvent; id and key say the offset unless given, so that no record waits behind another's failure."""
    identity = f"e{offset}" if id is None else id
    told = {"ce_specversion": "1.0", "ce_id": identity, "ce_source": "tests", "ce_type": type}
    headers = [(name, text.encode()) for name, text in told.items()]
    return SentRecord(offset, value, headers, b"k%d" % offset if key is OWN_KEY else key)


class Road:
    """One owner of partition 0, and where it stands."""

    def __init__(self, parts: JobParts, pool: Pool) -> None:
        self.parts, self.pool = parts, pool
        self.position = Position(0, 0, TOPIC_ID)
        self.attempts = Attempts()

    async def take_over(self) -> None:
        await self.parts.steward._positions.begin({PARTITION: self.position})
        taken = await self.parts.steward._positions.take_over(PARTITION)
        assert taken is not None
        self.position = taken

    async def handle(self, records: Sequence[SentRecord]) -> Outcome:
        """Settles `records` as one batch; a failed try keeps its attempts for the next call."""
        fence = self.parts.steward.fence(PARTITION, self.position)
        batch = Batch(fence, TOPIC_ID, records, records[-1].offset + 1, self.attempts)
        outcome = await self.parts.pipeline.handle(batch)
        self.position = replace(self.position, next_offset=batch.next_offset)
        self.attempts = Attempts()
        return outcome

    async def stored_offset(self) -> int:
        offset: int = await self.pool.fetchval("SELECT next_offset FROM tidegate.position")
        return offset

    async def dead_letters(self) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self.pool.fetch('SELECT * FROM tidegate.dead_letter ORDER BY "offset"')
        return rows


MakeRoad = Callable[..., Awaitable[Road]]
"""Builds another owner of the partition: `make_road(job, handlers, sink=…)`."""
