"""What readers see, as Tidegate tells it: refreshed first, then told, by one worker, never backward but by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from inbox.store import register_job
from projections.memory import MemorySink
from projections.visibility import Point, Shown, Visibility
from projections.visibility_refresh import Refresher
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import LeaseLost
from tidegate_kernel.event import JobCode, JobId, TopicPartition
from tidegate_kernel.lease import Lease, Token
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

ORDERS = UUID(int=7)
ANEW = UUID(int=8)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEASE = "refresh:tests/counts"


class WatchedSink(MemorySink):
    """Notes each refresh, and what had settled when it began."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self.refreshes = 0
        self.shown_during: list[int | None] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def refresh(self) -> None:
        self.refreshes += 1
        self.shown_during.append(await self._pool.fetchval("SELECT max(next_offset) FROM tidegate.visible"))
        await self.gate.wait()
        await super().refresh()


@pytest.fixture
async def job(pool: Pool) -> JobId:
    async with pool.acquire() as connection:
        return await register_job(connection, service="tests", code=JobCode("counts"), claim_rule="v1")


async def settle(
    pool: Pool, job: JobId, offset: int, *, partition: int = 0, topic_id: UUID = ORDERS, run: int = 0
) -> None:
    """A position stands there, whoever moved it."""
    await pool.execute(
        """
        INSERT INTO tidegate.position (job, run, topic, partition, next_offset, topic_id)
        VALUES ($1, $2, 'orders', $3, $4, $5)
        ON CONFLICT (job, run, topic, partition) DO UPDATE
        SET next_offset = EXCLUDED.next_offset, topic_id = EXCLUDED.topic_id, moved_at = now()
        """,
        job,
        run,
        partition,
        offset,
        topic_id,
    )


class Worker:
    """One that has the lease, unless it was taken from it."""

    def __init__(self, pool: Pool, job: JobId, sink: MemorySink, name: str = "worker") -> None:
        self.visibility = Visibility(pool, job)
        self.lease = Lease(pool, LEASE, holder=name, ttl=timedelta(seconds=6))
        self.metrics = Metrics()
        self.refresher = Refresher(
            sink,
            self.visibility,
            written=lambda: self.visibility.settled,
            lease=self.lease,
            job="counts",
            clock=SystemClock(),
            metrics=self.metrics,
        )

    async def begin(self) -> Token:
        token = await self.lease.take()
        assert token is not None
        await self.refresher._begin()
        return token

    async def shown(self, partition: TopicPartition = FIRST) -> Shown:
        return (await self.visibility.shown())[partition]


@contextmanager
def running(worker: Worker) -> Iterator[asyncio.Task[None]]:
    task = asyncio.create_task(worker.refresher.run())
    try:
        yield task
    finally:
        task.cancel()


async def test_what_has_settled_is_visible_after_a_round(pool: Pool, job: JobId) -> None:
    """Positions read, store refreshed, positions told: each partition of the job at once."""
    sink = WatchedSink(pool)
    worker = Worker(pool, job, sink)
    await settle(pool, job, 12)
    await settle(pool, job, 5, partition=1)

    await worker.refresher.round(await worker.begin())

    assert {place: each.point for place, each in (await worker.visibility.shown()).items()} == {
        FIRST: Point(ORDERS, 12),
        SECOND: Point(ORDERS, 5),
    }
    assert sink.refreshes == 1


async def test_nothing_is_told_as_visible_before_the_refresh_has_returned(pool: Pool, job: JobId) -> None:
    """G11: a reader who was promised the event must find it. What settles meanwhile is the next refresh's."""
    sink = WatchedSink(pool)
    worker = Worker(pool, job, sink)
    token = await worker.begin()
    await settle(pool, job, 12)
    sink.gate.clear()

    under_way = asyncio.create_task(worker.refresher.round(token))
    while not sink.shown_during:
        await asyncio.sleep(0.01)
    await settle(pool, job, 20)
    assert await pool.fetchval("SELECT count(*) FROM tidegate.visible") == 0
    sink.gate.set()
    await under_way

    assert (await worker.shown()).point == Point(ORDERS, 12)


async def test_store_rests_while_nothing_is_new(pool: Pool, job: JobId) -> None:
    """A refresh a second for nothing would cost a small cluster more than the events do."""
    sink = WatchedSink(pool)
    worker = Worker(pool, job, sink)
    token = await worker.begin()
    await settle(pool, job, 12)

    for _ in range(5):
        await worker.refresher.round(token)

    assert sink.refreshes == 1


async def test_backfill_is_refreshed_though_no_live_position_moves(pool: Pool, job: JobId) -> None:
    """It writes to the same store, and nobody else would make it visible."""
    sink = WatchedSink(pool)
    worker = Worker(pool, job, sink)
    token = await worker.begin()
    await settle(pool, job, 12)
    await worker.refresher.round(token)

    await settle(pool, job, 3, run=1)
    await worker.refresher.round(token)
    await worker.refresher.round(token)

    assert sink.refreshes == 2


async def test_failing_refresh_counts_nothing_as_visible(pool: Pool, job: JobId) -> None:
    """What was visible before stays so; since when there is trouble is kept, whoever refreshes next."""
    sink = WatchedSink(pool)
    worker = Worker(pool, job, sink)
    token = await worker.begin()
    await settle(pool, job, 12)
    await worker.refresher.round(token)
    sink.is_down = True
    await settle(pool, job, 30)

    await worker.refresher.round(token)
    troubled = await worker.shown()
    sink.is_down = False
    await worker.refresher.round(token)
    mended = await worker.shown()

    assert (troubled.point.next_offset, troubled.trouble) == (12, "sink 'memory' is down")
    assert (mended.point.next_offset, mended.trouble) == (30, None)
    count = worker.metrics.registry.get_sample_value
    assert count("tidegate_refreshes_total", {"job": "counts", "outcome": "failed"}) == 1
    assert count("tidegate_refreshes_total", {"job": "counts", "outcome": "done"}) == 2


async def test_store_that_never_refreshed_is_told_too(pool: Pool, job: JobId) -> None:
    """From the first start on: nothing visible, and why."""
    sink = WatchedSink(pool)
    sink.is_down = True
    worker = Worker(pool, job, sink)
    token = await worker.begin()
    await settle(pool, job, 12)

    await worker.refresher.round(token)

    assert (await worker.shown())[0:1] == (Point(ORDERS, 0),)
    assert (await worker.shown()).trouble == "sink 'memory' is down"


async def test_position_moved_back_by_hand_is_told_as_rewound(pool: Pool, job: JobId) -> None:
    """Case 107: what is read again is not visible again until it was applied again; up to where it had been, it is
    rewound. Past that it is as it was."""
    worker = Worker(pool, job, WatchedSink(pool))
    token = await worker.begin()
    steps = []
    for offset in (100, 40, 60, 100, 110):
        await settle(pool, job, offset)
        await worker.refresher.round(token)
        shown = await worker.shown()
        steps.append((shown.point.next_offset, shown.rewound_from))

    assert steps == [(100, None), (40, 100), (60, 100), (100, None), (110, None)]


async def test_topic_made_anew_begins_from_nothing(pool: Pool, job: JobId) -> None:
    """Offset 12 of the new topic is another record than offset 12 of the old one."""
    worker = Worker(pool, job, WatchedSink(pool))
    token = await worker.begin()
    await settle(pool, job, 100)
    await worker.refresher.round(token)
    before = await worker.shown()

    await settle(pool, job, 5, topic_id=ANEW)
    await worker.refresher.round(token)
    after = await worker.shown()

    assert (before.sees(ORDERS), before.sees(ANEW)) == (100, 0)
    assert (after.sees(ORDERS), after.sees(ANEW)) == (0, 5)
    assert after.rewound_from is None


async def test_stale_refresher_tells_nothing(pool: Pool, job: JobId) -> None:
    """G9: frozen between its refresh and its statement, it would put back what a rewind has taken away."""
    stale = Worker(pool, job, WatchedSink(pool), "stale")
    token = await stale.begin()
    await settle(pool, job, 100)
    await stale.refresher.round(token)
    await pool.execute("UPDATE tidegate.lease SET expires_at = now()")
    newer = Worker(pool, job, WatchedSink(pool), "newer")
    await settle(pool, job, 40)
    await newer.refresher.round(await newer.begin())

    with pytest.raises(LeaseLost):
        await stale.visibility.show(LEASE, token, {FIRST: Point(ORDERS, 100)})
    await stale.visibility.note_trouble(LEASE, token, "late")

    assert (await newer.shown()).point.next_offset == 40
    assert (await newer.shown()).trouble is None


async def test_of_several_workers_one_refreshes(pool: Pool, job: JobId) -> None:
    """Each worker asking for itself would be as many refreshes a second as there are replicas."""
    sinks = [WatchedSink(pool) for _ in range(4)]
    workers = [Worker(pool, job, sink, f"w{n}") for n, sink in enumerate(sinks)]
    await settle(pool, job, 12)

    with running(workers[0]), running(workers[1]), running(workers[2]), running(workers[3]):
        await _until_visible(workers[0], 12)

    assert sorted(sink.refreshes for sink in sinks) == [0, 0, 0, 1]


async def test_refresher_that_dies_is_replaced_within_its_lease(pool: Pool, job: JobId) -> None:
    """Nobody releases the lease of a process that was killed."""
    dead = Worker(pool, job, WatchedSink(pool), "dead")
    await dead.begin()
    await settle(pool, job, 12)
    loop = asyncio.get_running_loop()
    began = loop.time()

    alive = Worker(pool, job, WatchedSink(pool), "alive")
    with running(alive):
        await _until_visible(alive, 12)

    assert loop.time() - began < 30, "a lease of six seconds and a look, however busy the machine is"


async def test_slow_refresh_keeps_the_lease(pool: Pool, job: JobId) -> None:
    """A store that takes longer than the lease lives must not be asked by one worker after the other."""
    sink, other = WatchedSink(pool), WatchedSink(pool)
    sink.gate.clear()
    slow, waiting = Worker(pool, job, sink, "slow"), Worker(pool, job, other, "waiting")
    slow.lease._ttl = 0.6
    await settle(pool, job, 12)

    with running(slow):
        while not sink.refreshes:
            await asyncio.sleep(0.01)
        for _ in range(40):
            assert await waiting.lease.take() is None
            await asyncio.sleep(0.05)
        sink.gate.set()
        await _until_visible(slow, 12)

    assert other.refreshes == 0


async def test_last_word_makes_visible_what_nobody_else_would(pool: Pool, job: JobId) -> None:
    """The last worker of a job is stopped within the second after its last settle: nobody is there to refresh."""
    worker = Worker(pool, job, WatchedSink(pool))
    await settle(pool, job, 12)

    await worker.refresher.last_word()

    assert (await worker.shown()).point.next_offset == 12


async def _until_visible(worker: Worker, offset: int) -> None:
    async with asyncio.timeout(20):
        while True:
            shown = (await worker.visibility.shown()).get(FIRST)
            if shown is not None and shown.point.next_offset >= offset:
                return
            await asyncio.sleep(0.05)
