"""What the group gives this process becomes ours: its position gets a new epoch before the first fetch.

The group's listener only notes what changed (the client swallows what it raises); the taking is a task of its own and
tries again until all that is assigned is owned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from consumers.host import LaneSettings
from consumers.ownership import Holdings
from consumers.steward import Steward, Survey
from consumers.watch import Watch
from tidegate_kernel import logs
from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.errors import Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import RecordSource

_log = structlog.get_logger(__name__)

_TRY_AGAIN_SECONDS = 1.0


class TakingHost(Protocol):
    """The loop, as far as the taking needs it."""

    @property
    def settings(self) -> LaneSettings: ...
    @property
    def holdings(self) -> Holdings: ...

    async def let_go(self, partition: TopicPartition) -> None:
        """Returns when no fetch of an earlier ownership asks for `partition` any more."""

    def note_taken(self) -> None:
        """A partition is ours, under a new epoch."""

    def note_trouble(self, error: Transient) -> None:
        """Taking failed: perhaps something that the job needs is away."""


class Taking:
    """Takes ownership for one job in this process."""

    def __init__(self, steward: Steward, watch: Watch, host: TakingHost) -> None:
        self._steward, self._watch, self._host = steward, watch, host
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._trouble = ""
        self._not_yet: Mapping[TopicPartition, str] = {}
        self._changed = asyncio.Event()

    def note_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These, and no others, are the group's gift now."""
        self._assigned = partitions
        self._changed.set()

    def note_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """What is being taken of `partitions` is left alone when it comes."""
        self._assigned -= partitions

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:
        """Another owner has it. Where the group still says it is ours, it is taken over again, with a pause."""
        if not is_assigned:
            self._assigned -= {partition}
        self._changed.set()

    def missing(self) -> Mapping[TopicPartition, str]:
        """What the group gave us and is not ours yet, with what went wrong in the last round."""
        left = self._assigned - self._host.holdings.owned
        return {partition: self._not_yet.get(partition, self._trouble) for partition in left}

    async def run(self, source: RecordSource) -> None:
        """Until cancelled, whatever the group gives us is taken, again and again until all is ours."""
        while True:
            self._changed.clear()
            if missing := sorted(self.missing()):
                await self._take_all(source, missing)
            await self._wait_for_change(_TRY_AGAIN_SECONDS if self.missing() else None)

    async def _take_all(self, source: RecordSource, partitions: Sequence[TopicPartition]) -> None:
        try:
            survey = await self._steward.survey(source, partitions)
            # Before the first fetch: a paused job must not handle a batch after each rebalance or restart.
            await self._watch.learn()
            self._not_yet = await self._steward.not_yet(source, partitions, survey)
            for partition in partitions:
                if partition not in self._not_yet:
                    await self._take(source, partition, survey)
            self._trouble = ""
        except Transient as error:
            raise_if_cancelled(error)
            self._trouble = str(error)
            _log.warning(logs.TAKEOVER_FAILED, error=str(error))
            self._host.note_trouble(error)

    async def _take(self, source: RecordSource, partition: TopicPartition, survey: Survey) -> None:
        await self._host.let_go(partition)
        position = await self._steward.take(partition, survey)
        self._host.note_taken()
        corrections = await self._steward.corrections(partition, position)
        obstacle = survey.obstacle(partition, position)
        if obstacle is not None:
            # Perhaps the former owner settled what was written after the first look, while we waited for its row.
            obstacle = (await self._steward.survey(source, [partition])).obstacle(partition, position)
        if partition not in self._assigned:
            return  # revoked meanwhile: whoever owns it now raises the epoch after us
        source.seek(partition, position.next_offset)
        held = self._host.holdings.add(partition, position, corrections)
        self._watch.obey(held, source)
        held.suspect_next(self._host.settings.batch_size)
        if obstacle is not None:
            held.block(obstacle, source)
            return
        held.read_on(source)
        topic, number = partition
        _log.info(logs.PARTITION_OWNED, topic=topic, partition=number, offset=position.next_offset)

    async def _wait_for_change(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
