"""What becomes of a batch in hand: settled, stopped before a paused tenant, held back for another try, or dropped."""

from __future__ import annotations

import asyncio

import structlog

from consumers.batch import Batch, Outcome, Stop
from consumers.caution import Caution
from consumers.host import LaneHost
from consumers.ownership import Hold, Holding, Holdings
from consumers.steward import Standing, Steward
from tidegate_kernel import logs
from tidegate_kernel.errors import StaleOwner, Transient
from tidegate_kernel.source import NotAssigned, RecordSource

_log = structlog.get_logger(__name__)


class Settling:
    """Takes the batches of one lane to their end, and keeps what is known of their partitions true to it."""

    def __init__(
        self, source: RecordSource, caution: Caution, steward: Steward, *, holdings: Holdings, host: LaneHost
    ) -> None:
        self._source, self._caution, self._steward = source, caution, steward
        self._holdings, self._host = holdings, host

    async def handle(self, held: Holding, batch: Batch) -> None:
        """Returns when the batch is final, has to wait, or is another owner's."""
        started = self._host.clock.monotonic()
        held.begin(batch, started)
        try:
            outcome = await self._bounded(held, batch)
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
        except TimeoutError:
            if not held.is_cut_off:  # it has outlived a revoke's patience: the next owner begins it again
                raise
        finally:
            held.end()

    async def _bounded(self, held: Holding, batch: Batch) -> Outcome:
        """As `Caution.handle`; raises TimeoutError where the batch is cut off."""
        async with asyncio.timeout(None) as held.limit:
            try:
                return await self._caution.handle(held, batch)
            finally:
                held.limit = None

    async def pass_emptied(self, held: Holding, end: int) -> None:
        """Compaction has taken every record of a range that was begun: the position stands behind it."""
        try:
            held.position = await self._steward.pass_hidden(held.partition, held.position, next_offset=end)
        except StaleOwner:
            await self.give_up(held)
        except Transient as error:
            self._host.note_trouble(error)

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

    def _settled(self, held: Holding, batch: Batch, outcome: Outcome, *, started: float) -> None:
        held.settle(batch)
        self._wait_no_more(held)
        settings = self._host.settings
        # Behind, every record that is there is taken at once; caught up, each would become a batch of its own.
        if settings.linger and len(batch.records) < settings.batch_size and held.is_drained(self._source):
            held.fetch_due = started + settings.linger.total_seconds()
        self._host.meter.settled(batch, outcome, seconds=self._host.clock.monotonic() - started)

    async def _note_settled(self, batch: Batch, outcome: Outcome) -> None:
        try:
            await self._host.note_settled(batch, outcome)
        except Transient as error:
            self._host.note_trouble(error)  # the batch is settled all the same

    def _stop(self, held: Holding, stop: Stop) -> None:
        """The partition rests, with the record that must not be handled now as its next."""
        if not self._holdings.is_current(held):
            return
        topic, partition = held.partition
        if stop.full is not None:
            held.full = stop.full
            held.hold(Hold.PARKING, stop.why, self._source)
            _log.error(logs.PARKING_FULL, topic=topic, partition=partition, why=stop.why)
        else:
            held.stopped_tenant = stop.tenant
            held.hold(Hold.PAUSED, stop.why, self._source)
            _log.info(logs.PARTITION_PAUSED, topic=topic, partition=partition, why=stop.why)
        held.seek(self._source)

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
            self._go_on(held)
        else:
            await self.give_up(held)

    def _wait_no_more(self, held: Holding) -> None:
        if held.waiting is not None and self._holdings.is_current(held):
            held.waiting = None
            held.read_on(self._source)

    def _go_on(self, held: Holding) -> None:
        """It is read on from its position, unless it was revoked meanwhile: then the next owner seeks."""
        self._wait_no_more(held)
        if self._holdings.is_current(held):
            held.seek(self._source)

    async def _withdraw(self, held: Holding) -> None:
        try:
            await self._caution.withdraw(held)
        except Transient:
            return  # it counts for now; the release at the end takes it back, if Postgres answers then
