"""A process of the world: one worker or one backfill, with its own way to Postgres, Kafka and the sink.

It can be killed (nothing it does is seen by anybody from that point on), frozen, slowed down, or expelled from its
group without knowing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from projections.sink import Applied
from projections.writes import Write
from tests.property.postgres_faults import FaultyPool
from tidegate.assembly import JobParts, assemble, live_loop
from tidegate.jobs.declaration import Job
from tidegate.resources import Resources
from tidegate.testing.memory import MemorySource
from tidegate_kernel.errors import TidegateError, Transient
from tidegate_kernel.event import LIVE, Record, RunId, TopicPartition
from tidegate_kernel.postgres import Pool
from tidegate_kernel.source import Assigned, LogRange, RecordSource, Revoked

if TYPE_CHECKING:
    from tests.property.world import World

# As the supervisor of a worker: after an error the job is started anew, ever later.
_AGAIN_SECONDS, _LONGEST_SECONDS = 1.0, 30.0
# After which the group of a dead process deals its partitions to others.
_SESSION_SECONDS = 5.0


class Process:
    """A worker. `stop` asks it to end, `kill` ends it in the middle of whatever it does."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_dead = False
        self.latency = 0.0
        self.pool = FaultyPool(world.pool, world.postgres, self)
        self.source: MemorySource | None = None
        self.gone = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._stopping = asyncio.Event()
        self._inner: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self.task = asyncio.create_task(self._live(), name=name)

    @property
    def stays(self) -> bool:
        """Whether it goes on to work by itself."""
        return not self._stopping.is_set()

    # What everything that the process does must pass.

    async def gate(self) -> None:
        if self.latency:
            await asyncio.sleep(self.latency)
        await self._running.wait()
        if self.is_dead:
            raise asyncio.CancelledError

    def point(self) -> None:
        self.world.point()

    # What befalls it.

    def stop(self) -> None:
        self._stopping.set()

    def kill(self) -> None:
        self.is_dead = True
        self.pool.terminate()
        self.expel(after=_SESSION_SECONDS)
        for task in (self.task, self._inner, *self._answers):
            if task is not None:
                task.cancel()
        self._running.set()

    def cancel(self) -> None:
        """What runs in it is cancelled and starts anew."""
        if self._inner is not None:
            self._inner.cancel()

    def expel(self, *, after: float = 0.0) -> None:
        """The group goes on without it."""
        self.gone.set()
        group = self.world.group
        if self.source is not None and group.leave(self.source):
            asyncio.get_running_loop().call_later(after, self.world.broker.rebalance_later, group)

    def freeze(self) -> None:
        self._running.clear()
        self.expel()

    def thaw(self) -> None:
        self._running.set()

    def rejoin(self) -> None:
        """Its client has heard that it was expelled, and joins again."""
        source = self.source
        if source is not None and source not in self.world.group.members:
            self.gone.clear()
            self.world.later(self.world.group.join(source))

    # Its life.

    async def _live(self) -> None:
        restarts = 0
        while not self._stopping.is_set():
            self._inner = asyncio.create_task(self._run_once(), name=f"{self.name}-run")
            await asyncio.wait([self._inner])
            if not self._inner.cancelled() and (error := self._inner.exception()) is not None:
                self.world.note_restart(error)
                await asyncio.sleep(min(_LONGEST_SECONDS, _AGAIN_SECONDS * 2**restarts))
                restarts += 1

    async def _run_once(self) -> None:
        await self.gate()
        parts = await self._assemble()
        loop = live_loop(parts, self._join, self.world.clock)
        watcher = asyncio.create_task(self._pass_stop_on(loop.stop))
        try:
            await loop.run()
        finally:
            watcher.cancel()

    async def _pass_stop_on(self, stop: Callable[[], None]) -> None:
        await self._stopping.wait()
        stop()

    async def _assemble(self, run: RunId = LIVE) -> JobParts:
        sink = FaultySink(self) if self.world.has_sink else None
        return await assemble(self.world.app, self.job, self.resources, sink=sink, run=run)

    @property
    def job(self) -> Job:
        return self.world.app.jobs[0]

    @property
    def resources(self) -> Resources:
        world = self.world
        pool = cast("Pool", self.pool)
        return Resources(world.settings, pool, world.clock, world.metrics, world.threads, self.name)

    # Kafka.

    @asynccontextmanager
    async def _join(self, on_assigned: Assigned, on_revoked: Revoked) -> AsyncIterator[RecordSource]:
        async def revoked(partitions: frozenset[TopicPartition]) -> None:
            if partitions and not self.is_dead:
                await self._answer(on_revoked(partitions))

        await self.gate()
        self.gone.clear()
        topics = [topic.name for topic in self.job.topics]
        async with self.world.broker.join(self.world.group_name, topics, on_assigned, revoked) as source:
            self.source = source
            try:
                yield GatedSource(source, self)
            finally:
                self.source = None

    async def _answer(self, drain: Awaitable[None]) -> None:
        """A rebalance waits for our answer, but not for the dead and the expelled."""
        answer = asyncio.ensure_future(drain)
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        gone = asyncio.create_task(self.gone.wait())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()


class GatedSource:
    """The process's `RecordSource`. Watches that the group is never told more than what is settled."""

    def __init__(self, real: MemorySource, process: Process) -> None:
        self._real, self._process = real, process

    def require_alive(self) -> None:
        self._real.require_alive()

    def assignment(self) -> frozenset[TopicPartition]:
        return self._real.assignment()

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, max_records: int, timeout: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        await self._process.gate()
        found = await self._real.fetch(partitions, max_records=max_records, timeout=timeout)
        if found:
            self._process.point()
            await self._process.gate()
        return found

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._real.seek(partition, offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._real.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._real.resume(partitions)

    def drained_to(self, partition: TopicPartition) -> int | None:
        return self._real.drained_to(partition)

    def known_end(self, partition: TopicPartition) -> int | None:
        return self._real.known_end(partition)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._process.gate()
        if offsets:
            await self._process.world.watch_commit(offsets)
            self._process.point()
            await self._process.gate()
        await self._real.commit(offsets)

    async def ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        await self._process.gate()
        return await self._real.ranges(partitions)

    async def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return await self._real.offsets_at(partitions, timestamp_ms)

    async def topic_id(self, topic: str) -> UUID:
        await self._process.gate()
        return await self._real.topic_id(topic)

    async def partitions_of(self, topic: str) -> frozenset[TopicPartition]:
        return await self._real.partitions_of(topic)

    async def close(self) -> None:
        await self._real.close()


class FaultySink:
    """The process's way to the sink that all share."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._real = process.world.sink

    async def prepare(self) -> None:
        await self._real.prepare()

    async def check(self) -> None:
        await self._real.check()

    def encode(self, write: Write) -> Any:
        return self._real.encode(write)

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        self._process.point()
        await self._process.gate()
        share = self._process.world.take_sink_fault() if encoded else None
        if share is not None:
            await self._real.apply(encoded[: round(len(encoded) * share)])
            raise Transient("injected: the sink's answer was lost")
        applied = await self._real.apply(encoded)
        self._process.point()
        await self._process.gate()
        return applied

    async def purge(self, before: datetime, most: int) -> int:
        await self._process.gate()
        return await self._real.purge(before, most)

    async def reset(self) -> None:
        await self._process.gate()
        await self._real.reset()

    async def documents(self) -> int:
        return await self._real.documents()

    async def refresh(self) -> None:
        await self._process.gate()
        await self._real.refresh()

    async def probe(self) -> bool:
        return await self._real.probe()


class Unsettled(TidegateError):
    """The world was healed, and yet the work did not come to its end."""
