"""A lane takes batches of its share of the owned partitions to their end, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from consumers.batch import Batch
from consumers.caution import Caution
from consumers.fetching import Fetching, Found, Unreadable
from consumers.host import LaneHost
from consumers.ownership import Holding, Holdings
from consumers.pipeline import Pipeline
from consumers.settling import Settling
from consumers.steward import Steward
from consumers.tail import Tail
from consumers.unread import UnreadRecord
from tidegate_kernel import logs
from tidegate_kernel.errors import Poison
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import RecordSource, SourceFailure

_log = structlog.get_logger(__name__)

# Bounds how late a lane notices a partition that it was given, or a retry that fell due, while it waits for records.
_FETCH_WAIT_SECONDS = 0.2
_NOTHING_OWNED_SECONDS = 0.02


class Lane:
    """One of the lanes of a job in this process."""

    def __init__(
        self,
        number: int,
        source: RecordSource,
        pipeline: Pipeline,
        steward: Steward,
        *,
        holdings: Holdings,
        host: LaneHost,
    ) -> None:
        self.number = number
        self._source, self._steward, self._holdings, self._host = source, steward, holdings, host
        caution = Caution(pipeline, steward, host.solitude, attempts=host.settings.retry.crash_attempts)
        self._settling = Settling(source, caution, steward, holdings=holdings, host=host)
        self._fetching = Fetching(source, holdings, max_records=host.settings.batch_size)
        self._tail = Tail(source, steward, holdings, host.clock)
        self._failed_fetches = 0
        self._being_fetched: Collection[TopicPartition] = ()
        self._fetch_ended = asyncio.Event()
        self.last_beat = host.clock.monotonic()

    async def run(self) -> None:
        """Returns when the host is stopping and the batch in hand has come to its end."""
        while not self._host.is_stopping():
            self.last_beat = self._host.clock.monotonic()
            await self._retry_due()
            for held, found in await self._fetch():
                if self._host.is_stopping():
                    return
                self.last_beat = self._host.clock.monotonic()
                await self._take_in(held, found)

    async def let_go(self, partition: TopicPartition) -> None:
        """Returns when no fetch of this lane asks for `partition` any more.

        A fetch that outlives a rebalance brings records of the partition's next ownership, which nobody would handle,
        while the client goes on behind them: so the next owner seeks only after it.
        """
        while partition in self._being_fetched:
            self._fetch_ended.clear()
            await self._fetch_ended.wait()

    async def give_up(self, held: Holding) -> None:
        """Drops the work: the row has another owner, or was moved by hand."""
        await self._settling.give_up(held)

    async def _retry_due(self) -> None:
        now = self._host.clock.monotonic()
        for held in self._holdings.of_lane(self.number):
            batch = held.waiting
            if batch is not None and not held.holds and held.due <= now and not self._host.is_stopping():
                await self._settling.handle(held, batch)

    async def _fetch(self) -> Sequence[tuple[Holding, Found]]:
        own = self._holdings.of_lane(self.number)
        for held in own:
            held.note_end(self._source)
        now = self._host.clock.monotonic()
        ready = {held.partition: held for held in own if held.is_ready and held.fetch_due <= now}
        if not ready:
            await self._host.clock.sleep(_NOTHING_OWNED_SECONDS)
            return ()
        try:
            fetched = await self._ask_for(ready.keys())
        except SourceFailure as error:
            self._failed_fetches += 1
            _log.warning(logs.FETCH_FAILED, error=str(error), failures=self._failed_fetches)
            self._host.note_trouble(error)
            await self._host.clock.sleep(self._host.settings.retry.delay(self._failed_fetches, error))
            return ()
        self._failed_fetches = 0
        without = [held for partition, held in ready.items() if partition not in fetched]
        for held in without:
            held.empty_fetches += 1
        await self._tail.note(without)
        begun: list[tuple[Holding, Found]] = [(held, ()) for held in without if held.position.range_end is not None]
        return begun + [(ready[partition], found) for partition, found in fetched.items()]

    async def _ask_for(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Found]:
        self._being_fetched = partitions
        try:
            return await self._fetching.fetch(partitions, timeout=_FETCH_WAIT_SECONDS)
        finally:
            self._being_fetched = ()
            self._fetch_ended.set()

    async def _take_in(self, held: Holding, found: Found) -> None:
        if not self._holdings.is_current(held):
            return  # revoked since we asked for it: whoever owns it now seeks to its own position
        if held.holds:
            held.seek(self._source)  # it must rest since we asked: read again when it may go on
            return
        match found:
            case Unreadable() if held.position.range_end is not None:
                # Cut before it, the range would be another, and what had been applied of it would count twice.
                held.block(
                    f"{found.error} within records that were begun as one before it could not be read", self._source
                )
            case Unreadable(offset=offset, error=error, record=known):
                record = known or UnreadRecord(*held.partition, offset)
                await self._settling.handle(held, self._batch(held, [record], unreadable=error))
            case SourceFailure():
                why = await self._steward.explain(self._source, held.partition, held.position, found)
                if self._holdings.is_current(held):
                    held.block(why, self._source)
            case _ if held.position.range_end is not None:
                await self._again(held, found, held.position.range_end)
            case _:
                records = held.unhandled(found)
                if records and held.is_suspect:
                    await self._in_groups(held, records)
                elif records:
                    await self._settling.handle(held, self._batch(held, records))

    async def _again(self, held: Holding, found: Sequence[Record], end: int) -> None:
        """The range that was begun is handled once all of it is read; what came along from behind it is read again."""
        held.gather(found)
        if not held.has_gathered_all(self._source, found[-1].offset if found else -1):
            return
        records = list(held.gathered)
        held.gathered.clear()
        if self._holdings.is_current(held) and held.partition in self._source.assignment():
            self._source.seek(held.partition, end)
        if records:
            await self._settling.handle(held, replace(self._batch(held, records), next_offset=end, is_begun=True))
        else:
            await self._settling.pass_emptied(held, end)

    async def _in_groups(self, held: Holding, records: Sequence[Record]) -> None:
        """Records of a suspect partition, until some have to wait; what is left is read again."""
        while records:
            if self._host.is_stopping() or not self._holdings.is_current(held):
                return  # the next owner seeks
            if not held.is_ready:
                held.seek(self._source)
                return
            group, records = records[: held.group], records[held.group :]
            await self._settling.handle(held, self._batch(held, group))

    def _batch(self, held: Holding, records: Sequence[Record], *, unreadable: Poison | None = None) -> Batch:
        fence = self._steward.fence(held.partition, held.position)
        return Batch(
            fence,
            held.position.topic_id,
            records,
            records[-1].offset + 1,
            unreadable=unreadable,
            corrections=held.corrections,
        )
