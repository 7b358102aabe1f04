"""Once a second: what is wanted of the job is read and obeyed, and what is true of its partitions is told.

A new owner reads what is wanted before its first fetch (`learn`, `obey`); the rest of the time `run` keeps it up. Where
Postgres does not answer, the partitions go on as they were last told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import structlog

from consumers.intents import OBEYED, Intents
from consumers.ownership import Hold, Holding, Holdings
from consumers.pipeline import Pipeline
from consumers.presence import AtWork, Presence, State, Told, told_of
from consumers.resting import watch_ends
from dlq.parking import OrderKey
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)

# An intent is obeyed within two seconds: one to the next look, and one for the look itself on a busy server.
_LOOK_EVERY_SECONDS = 1.0
_HEARTBEAT_SECONDS = 10.0
# A look that takes longer must not keep a pause from ending at its time.
_PATIENCE_SECONDS = 3.0

HasRoom = Callable[[OrderKey], Awaitable[bool]]
"""Whether an event of a key could be parked now. Raises Transient."""


class Watched(Protocol):
    """The loop, as far as the watch needs it."""

    @property
    def source(self) -> RecordSource | None: ...
    @property
    def holdings(self) -> Holdings: ...
    def being_taken(self) -> Mapping[TopicPartition, str]:
        """Partitions that the group gave us and that are not ours yet, and what has kept them so."""

    async def moved(self) -> Sequence[Holding]:
        """Owned partitions whose rows are under a newer epoch: moved by hand, or another's. Raises Transient."""

    async def give_up(self, held: Holding) -> None:
        """The partition is not ours any more; where the group still gives it to us, it is taken anew."""


class Watch:
    """The eyes and the voice of one job in this process."""

    def __init__(
        self,
        intents: Intents,
        presence: Presence,
        pipeline: Pipeline,
        clock: Clock,
        *,
        at_work: AtWork,
        has_room: HasRoom,
    ) -> None:
        self._intents, self._presence, self._pipeline, self._clock = intents, presence, pipeline, clock
        self._at_work, self._has_room = at_work, has_room
        self._last_told: dict[TopicPartition, Told] = {}
        self._heard_at = -_HEARTBEAT_SECONDS

    async def learn(self) -> None:
        """What is wanted now is known. Raises Transient: nothing may be fetched of a new partition then."""
        await self._intents.read()
        self._pipeline.paused_tenants = self._intents.tenants()

    def obey(self, held: Holding, source: RecordSource) -> None:
        """The partition rests if, and only if, what is known says so."""
        topic, partition = held.partition
        wanted = dict(self._intents.holds(held.partition))
        tenant = held.stopped_tenant
        if tenant is not None and (why := self._intents.tenants().get(tenant)) is not None:
            wanted.setdefault(Hold.PAUSED, why)
        for hold in sorted(OBEYED):
            if hold in wanted and held.holds.get(hold) != wanted[hold]:
                held.hold(hold, wanted[hold], source)
                _log.info(logs.PARTITION_PAUSED, topic=topic, partition=partition, why=wanted[hold])
            elif hold not in wanted and hold in held.holds:
                held.stopped_tenant = None
                held.release(hold, source)
                _log.info(logs.PARTITION_RESUMED, topic=topic, partition=partition, why=hold)

    async def run(self, loop: Watched) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if loop.source is not None:
                tasks.create_task(watch_ends(loop.source, loop.holdings, self._clock), name="ends")
            while True:
                await self._clock.sleep(_LOOK_EVERY_SECONDS)
                await self._look(loop)

    async def leave(self) -> None:
        """The partitions that were told of are released, as far as Postgres takes it in time."""
        await self._tell({}, self._clock.monotonic())

    async def _look(self, loop: Watched) -> None:
        if (source := loop.source) is None:
            return
        if await self._is_up_to_date(loop):
            self._pipeline.paused_tenants = self._intents.tenants()
            for held in loop.holdings.all():
                self.obey(held, source)
        await self._look_for_room(loop, source)
        await self._tell(self._what_is_true(loop, source), self._clock.monotonic())

    async def _look_for_room(self, loop: Watched, source: RecordSource) -> None:
        """What rests because nothing more can be parked goes on when something can."""
        for held in loop.holdings.all():
            if held.full is None:
                continue
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    has_room = await self._has_room(held.full)
            except (Transient, TimeoutError):
                return
            if has_room:
                held.full = None
                held.release(Hold.PARKING, source)
                _log.info(
                    logs.PARTITION_RESUMED,
                    topic=held.partition.topic,
                    partition=held.partition.partition,
                    why=Hold.PARKING,
                )

    async def _is_up_to_date(self, loop: Watched) -> bool:
        """Whether what is known may be obeyed. Positions are looked at after the intents: who moves one by hand does so
        under a pause, so whatever is resumed stands where it should, and nothing is read from where it stood before."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._intents.read()
        except (Transient, TimeoutError):
            return True  # what is known stays in force, each intent until its own end
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                moved = await loop.moved()
        except (Transient, TimeoutError):
            return False
        for held in moved:
            await loop.give_up(held)
        return True

    def _what_is_true(self, loop: Watched, source: RecordSource) -> dict[TopicPartition, Told]:
        now = self._clock.monotonic()
        true = {held.partition: told_of(held, source, self._at_work, now) for held in loop.holdings.all()}
        waiting = {
            partition: Told(State.TAKING_OVER, trouble, now, None)
            for partition, trouble in loop.being_taken().items()
            if partition not in true
        }
        return {partition: self._since(partition, told) for partition, told in (waiting | true).items()}

    def _since(self, partition: TopicPartition, told: Told) -> Told:
        """A state that goes on keeps its beginning, whatever becomes of its details."""
        return told.begun_with(self._last_told.get(partition))

    async def _tell(self, true: Mapping[TopicPartition, Told], now: float) -> None:
        is_heartbeat = now - self._heard_at >= _HEARTBEAT_SECONDS
        news = {p: told for p, told in true.items() if is_heartbeat or not told.says_the_same(self._last_told.get(p))}
        gone = self._gone(true.keys(), now)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._presence.tell(news | gone, now)
        except (Transient, TimeoutError):
            return  # the next look tells it again
        if is_heartbeat:
            self._heard_at = now
        self._last_told = dict(true)

    def _gone(self, true: AbstractSet[TopicPartition], now: float) -> dict[TopicPartition, Told]:
        """What we owned and do not own any more. Whoever has taken it over since has a newer epoch."""
        return {
            partition: Told(State.RELEASED, "", now, last.epoch)
            for partition, last in self._last_told.items()
            if partition not in true and last.epoch is not None
        }
