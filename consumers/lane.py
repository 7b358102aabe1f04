"""A lane takes batches of its share of the owned partitions to their end, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from consumers.batch import Batch, Outcome, Stop
from consumers.caution import Caution, Solitude
from consumers.failure import RetryPolicy
from consumers.fetching import Fetching, Found, Unreadable
from consumers.meter import Meter
from consumers.ownership import Hold, Holding, Holdings
from consumers.pipeline import Pipeline
from consumers.steward import Standing, Steward
from consumers.unread import UnreadRecord
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Poison, StaleOwner, Transient
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.source import NotAssigned, RecordSource, SourceFailure

_log = structlog.get_logger(__name__)

# Bounds how late a lane notices a partition that it was given, or a retry that fell due, while it waits for records.
_FETCH_WAIT_SECONDS = 0.2
_NOTHING_OWNED_SECONDS = 0.02
# Every transaction of a producer ends in a marker: a statement for each would cost as much as the batches.
_TAIL_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """What differs between jobs and places. `drain_timeout` bounds a revoke and a stop."""

    lanes: int = 2
    batch_size: int = 500
    drain_timeout: timedelta = timedelta(seconds=20)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class LaneHost(Protocol):
    """The loop or backfill that runs the lane."""

    @property
    def settings(self) -> LaneSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def meter(self) -> Meter: ...
    @property
    def solitude(self) -> Solitude: ...
    def is_stopping(self) -> bool: ...

    async def note_settled(self, batch: Batch, outcome: Outcome) -> None:
        """A batch is final: whether it was one dead letter too many is the host's matter. Raises Transient."""

    def note_trouble(self, error: Transient) -> None:
        """A batch was rolled back, or a fetch failed: perhaps something that the job needs is away."""

    def note_lost(self, partition: TopicPartition, *, is_assigned: bool) -> None:
        """The lane dropped `partition` because its row has another owner."""


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
        self._source, self._steward = source, steward
        self._caution = Caution(pipeline, steward, host.solitude, attempts=host.settings.retry.crash_attempts)
        self._holdings, self._host = holdings, host
        self._fetching = Fetching(source, holdings, max_records=host.settings.batch_size)
        self._failed_fetches = 0
        self._being_fetched: Mapping[TopicPartition, Holding] = {}
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

    async def _fetch(self) -> Sequence[tuple[Holding, Found]]:
        own = self._holdings.of_lane(self.number)
        for held in own:
            held.note_end(self._source)
        ready = [held for held in own if held.is_ready]
        if not ready:
            await self._host.clock.sleep(_NOTHING_OWNED_SECONDS)
            return ()
        self._being_fetched = {held.partition: held for held in ready}
        try:
            fetched = await self._fetching.fetch(list(self._being_fetched), timeout=_FETCH_WAIT_SECONDS)
        except SourceFailure as error:
            self._end_fetch()
            self._failed_fetches += 1
            _log.warning(logs.FETCH_FAILED, error=str(error), failures=self._failed_fetches)
            self._host.note_trouble(error)
            await self._host.clock.sleep(self._host.settings.retry.delay(self._failed_fetches, error))
            return ()
        asked = self._end_fetch()
        self._failed_fetches = 0
        self._note_caught_up(ready, fetched)
        for held in ready:
            if held.partition not in fetched:
                await self._pass_hidden_tail(held)
        return [(asked[partition], found) for partition, found in fetched.items()]

    def _end_fetch(self) -> Mapping[TopicPartition, Holding]:
        """No fetch is under way; returns what the last one asked for."""
        asked, self._being_fetched = self._being_fetched, {}
        self._fetch_ended.set()
        return asked

    def _note_caught_up(self, ready: Sequence[Holding], fetched: Mapping[TopicPartition, Found]) -> None:
        now = self._host.clock.now()
        for held in ready:
            if held.partition not in fetched and held.is_drained(self._source):
                held.caught_up_at = now

    async def _pass_hidden_tail(self, held: Holding) -> None:
        """The position stands at the log's end, also where markers or aborted records are the last there is.

        Left before them it would look, once retention has removed them, as if records had been lost.
        """
        now, end = self._host.clock.monotonic(), held.hidden_tail(self._source)
        # Seen twice: what the client had still to tell of these offsets, the fetch in between would have raised.
        was_seen, held.tail_seen = end is not None and end == held.tail_seen, end
        if end is None or not was_seen or now < held.tail_due or not self._holdings.is_current(held):
            return
        held.tail_due = now + _TAIL_EVERY_SECONDS
        try:
            held.position = await self._steward.pass_hidden(held.partition, held.position, next_offset=end)
        except (StaleOwner, Transient):
            return  # nothing depends on it; a lost partition shows with its next batch

    async def _take_in(self, held: Holding, found: Found) -> None:
        if not self._holdings.is_current(held):
            return  # revoked since we asked for it: whoever owns it now seeks to its own position
        if held.holds:
            self._seek(held.partition, held.resume_offset)  # it must rest since we asked: read again when it may go on
            return
        match found:
            case Unreadable(offset=offset, error=error):
                await self._work(held, self._batch(held, [UnreadRecord(*held.partition, offset)], unreadable=error))
            case SourceFailure():
                why = await self._steward.explain(self._source, held.partition, held.position, found)
                if self._holdings.is_current(held):
                    held.block(why, self._source)
            case _:
                records = held.unhandled(found)
                if records and held.is_suspect:
                    await self._one_by_one(held, records)
                elif records:
                    await self._work(held, self._batch(held, records))

    async def _one_by_one(self, held: Holding, records: Sequence[Record]) -> None:
        """Records of a suspect partition, until one has to wait; what is left is read again."""
        for record in records:
            if self._host.is_stopping() or not self._holdings.is_current(held):
                return  # the next owner seeks
            if not held.is_ready:
                self._seek(held.partition, held.resume_offset)
                return
            await self._work(held, self._batch(held, [record]))

    def _batch(self, held: Holding, records: Sequence[Record], *, unreadable: Poison | None = None) -> Batch:
        fence = self._steward.fence(held.partition, held.position)
        return Batch(fence, held.position.topic_id, records, records[-1].offset + 1, unreadable=unreadable)

    async def _retry_due(self) -> None:
        now = self._host.clock.monotonic()
        for held in self._holdings.of_lane(self.number):
            batch = held.waiting
            if batch is not None and not held.holds and held.due <= now and not self._host.is_stopping():
                await self._work(held, batch)

    async def _work(self, held: Holding, batch: Batch) -> None:
        started = self._host.clock.monotonic()
        held.begin(batch, started)
        try:
            outcome = await self._caution.handle(held, batch)
            done = batch if outcome.stop is None else batch.before(outcome.stop.offset)
            if done.records:
                self._settled(held, done, outcome, started=started)
                await self._note_settled(done, outcome)
            if outcome.stop is not None:
                self._stop(held, outcome.stop)
                await self._withdraw(held)
        except StaleOwner:
            await self._recover(held, batch)
        except Transient as error:
            self._hold_back(held, batch, error)
            await self._withdraw(held)
        finally:
            held.end()

    async def _note_settled(self, batch: Batch, outcome: Outcome) -> None:
        try:
            await self._host.note_settled(batch, outcome)
        except Transient as error:
            self._host.note_trouble(error)  # the batch is settled all the same

    async def _withdraw(self, held: Holding) -> None:
        try:
            await self._caution.withdraw(held)
        except Transient:
            return  # it counts for now; the release at the end takes it back, if Postgres answers then

    def _settled(self, held: Holding, batch: Batch, outcome: Outcome, *, started: float) -> None:
        held.settle(batch)
        self._unpause(held)
        self._host.meter.settled(batch, outcome, seconds=self._host.clock.monotonic() - started)

    def _stop(self, held: Holding, stop: Stop) -> None:
        """The partition rests, with the record of a paused tenant as its next."""
        if not self._holdings.is_current(held):
            return
        held.stopped_tenant = stop.tenant
        held.hold(Hold.PAUSED, stop.why, self._source)
        self._seek(held.partition, held.resume_offset)
        _log.info(logs.PARTITION_PAUSED, topic=held.partition.topic, partition=held.partition.partition, why=stop.why)

    def _unpause(self, held: Holding) -> None:
        if held.waiting is not None and self._holdings.is_current(held):
            held.waiting = None
            held.read_on(self._source)

    def _hold_back(self, held: Holding, batch: Batch, error: Transient) -> None:
        """The batch waits outside any transaction; its partition is paused, the lane goes on with others."""
        if not self._holdings.is_current(held):
            return  # revoked meanwhile: a pause would hit whoever owns it now, which may be this process again
        batch.attempts.tries += 1
        delay = self._host.settings.retry.delay(batch.attempts.tries, error)
        trouble = f"{type(error.__cause__ or error).__name__}: {error}"
        held.wait(batch, trouble, now=self._host.clock.monotonic(), delay=delay)
        self._source.pause([held.partition])
        self._host.meter.held_back()
        self._host.note_trouble(error)
        _log.warning(
            logs.BATCH_HELD_BACK,
            topic=held.partition.topic,
            partition=held.partition.partition,
            offset=batch.fence.next_offset,
            tries=batch.attempts.tries,
            wait_seconds=round(delay, 3),
            error=str(error),
        )

    async def _recover(self, held: Holding, batch: Batch) -> None:
        """The fence did not hold, or an answer was lost on the way: the row tells what happened."""
        try:
            standing, position = await self._steward.standing(held.partition, held.position, batch)
        except Transient as error:
            self._hold_back(held, batch, error)
            return
        if standing is Standing.COMMITTED:
            self._settled(held, batch, Outcome(), started=self._host.clock.monotonic())
        elif standing is Standing.MOVED and position is not None:
            held.position = position
            self._unpause(held)
            self._seek(held.partition, position.next_offset)
        else:
            await self.give_up(held)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        if partition in self._source.assignment():
            self._source.seek(partition, offset)

    async def give_up(self, held: Holding) -> None:
        """Drops the work: the row has another owner, or was moved by hand."""
        _log.warning(logs.PARTITION_LOST, topic=held.partition.topic, partition=held.partition.partition)
        if not self._holdings.is_current(held):
            return  # the work of an earlier ownership; the present one has to go on undisturbed
        self._source.pause([held.partition])
        self._holdings.drop([held.partition])
        is_assigned = True
        try:
            # A zombie's client believes that it is still assigned; only a commit that succeeds proves it.
            await self._source.commit({held.partition: held.position.next_offset})
        except NotAssigned:
            is_assigned = False
        except Transient as error:
            # Kafka does not answer now. Giving up for good would leave an assigned partition that nobody reads; taking
            # it over from its owner, if it has one, costs only that owner a repeat.
            _log.warning(logs.COMMIT_FAILED, topic=held.partition.topic, error=str(error))
        self._host.note_lost(held.partition, is_assigned=is_assigned)
