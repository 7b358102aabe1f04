"""One job's whole world for the length of a schedule: broker, sink, processes, faults, time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import asyncpg

from projections.memory import MemorySink
from tests.property.application import CODE, PARTITIONS, REFUSED_ID, PaymentsAway, make_app, topic_name
from tests.property.postgres_faults import Breakage, PostgresFault, PostgresFaults
from tests.property.process import Process
from tests.property.produced import Produced
from tests.property.replayer import Replays
from tests.property.schedule import Kind
from tests.property.virtual_time import VirtualLoop
from tidegate import App
from tidegate.testing.groups import Group
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import JobCode, TopicPartition
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.settings import Settings

_MOST_CANCELLATIONS = 1_000
# Two transactions in each other's way, and an outage, are nobody's fault.
_NOBODYS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, PaymentsAway)

_POSITIONS = """
SELECT p.topic, p.partition, p.next_offset FROM tidegate.position AS p JOIN tidegate.job AS j ON j.id = p.job
WHERE j.service = $1 AND p.run = 0
"""


class WorldClock:
    """Wall time can jump; durations and sleeping follow the loop's own time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._started = loop.time()
        self._began = datetime.now(UTC)
        self.jumped = timedelta()

    def jump(self, by: timedelta) -> None:
        self.jumped += by

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self._loop.time() - self._started) + self.jumped

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Ground:
    """What all worlds of a test run stand on, one after the other."""

    loop: VirtualLoop
    pool: asyncpg.Pool[asyncpg.Record]
    settings: Settings
    metrics: Metrics
    threads: ThreadPoolExecutor


class World:
    """Use once, within the loop."""

    def __init__(self, service: str, kind: Kind, ground: Ground) -> None:
        self.service, self.kind = service, kind
        self.pool, self.settings, self.metrics = ground.pool, ground.settings, ground.metrics
        self.threads, self.loop = ground.threads, ground.loop
        self.clock = WorldClock(ground.loop)
        self.postgres = PostgresFaults(ground.loop)
        self.postgres.during_query = self._note_query_fault
        self.broker = MemoryBroker(self.clock)
        self.sink = MemorySink(batch_size=100, refuse={REFUSED_ID})
        self.app = make_app(service, kind, self, self.sink)
        self.replays = Replays()
        self.produced = Produced(service, self.broker)
        self.processes: list[Process] = []
        self.is_payments_away = False
        self.sink_faults: list[float] = []
        self.restarts: list[BaseException] = []
        self.told_too_much: list[str] = []
        self.blames: Counter[str] = Counter()
        self.backfills = 0
        self.deaths = 0
        self.points = 0
        self._turns: Counter[str] = Counter()
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._later: set[asyncio.Task[Any]] = set()
        for name, count in PARTITIONS.items():
            self.broker.create_topic(topic_name(service, name), count)

    @cached_property
    def mended_app(self) -> App:
        return make_app(self.service, self.kind, self, self.sink, is_mended=True)

    @property
    def has_sink(self) -> bool:
        return self.kind in (Kind.PROJECTION, Kind.FOLD)

    @property
    def group_name(self) -> str:
        return self.app.group(JobCode(CODE))

    @property
    def group(self) -> Group:
        return self.broker.group(self.group_name)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [each for name in PARTITIONS for each in self.broker.partitions(topic_name(self.service, name))]

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead and not process.task.done()]

    # Points.

    def point(self) -> None:
        """Something that others can see is about to happen, or has just happened."""
        self.points += 1
        due = [strike for at, strike in self._due if at <= self.points]
        self._due = [(at, strike) for at, strike in self._due if at > self.points]
        for strike in due:
            strike()

    def after_points(self, count: int, strike: Callable[[], None]) -> None:
        self._due.append((self.points + count, strike))

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """`work` goes on beside everything else."""
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def end(self) -> None:
        """No task of this world is left. Raises AssertionError if one does not heed its cancellation."""
        for process in self.processes:
            process.kill()
        cancelled = 0
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            assert cancelled < _MOST_CANCELLATIONS, f"cancelled {cancelled} times, and still there: {rest}"
            cancelled += 1
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=1)

    # What handlers ask.

    def takes_a_turn(self, event: str) -> bool:
        self._turns[event] += 1
        return self._turns[event] <= self.produced.events[event].times

    def blame(self, events: Iterable[str], error: BaseException) -> None:
        if not self.postgres.is_down and not isinstance(error, _NOBODYS):
            self.blames.update(events)

    async def payments_answer(self) -> bool:
        return not self.is_payments_away

    # What the outer world sees.

    def note_restart(self, error: BaseException) -> None:
        self.restarts.append(error)
        self.deaths += 1

    def take_sink_fault(self) -> float | None:
        return self.sink_faults.pop(0) if self.sink_faults else None

    async def ask(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Rows as they stand, beside all faults."""
        return await self.loop.statement(lambda: self.pool.fetch(query, *args))

    async def positions(self) -> Mapping[TopicPartition, int]:
        """The live rows as they stand."""
        rows = await self.ask(_POSITIONS, self.service)
        return {TopicPartition(row["topic"], row["partition"]): row["next_offset"] for row in rows}

    async def watch_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        settled = await self.positions()
        for partition, offset in offsets.items():
            if offset > settled.get(partition, 0):
                self.told_too_much.append(f"{partition}: told {offset}, settled {settled.get(partition)}")

    async def is_drained(self) -> bool:
        """Whether every record lies below its partition's position."""
        settled = await self.positions()
        for partition in self.partitions:
            log = self.broker.log(partition)
            last = None if log is None else log.last_offset()
            if last is not None and settled.get(partition, 0) <= last:
                return False
        return True

    def _note_query_fault(self, fault: PostgresFault) -> None:
        """Within a savepoint the failing statement may be the check of constraints: the handler is blamed for it."""
        if fault.how is Breakage.CANCELLED:
            self.blames.update(list(self.produced.events))
