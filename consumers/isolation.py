"""Isolating mode: find the records of a batch that fail, and let the others pass, in one transaction.

Each handler runs under a savepoint, so a failing one leaves nothing behind. Handlers that take lists are halved until
the failing record stands alone: k bad records among n cost O(k·log n) calls. What follows a failing record under its
key is not tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.batch import Batch
from consumers.decoding import Arrival
from consumers.dispatch import Dispatcher, HandlerFailed, Prepared
from consumers.failure import FailureClass, classify
from consumers.judging import Judge
from consumers.letters import failure_of_arrival
from consumers.order import Gate
from dlq.letters import Failure
from inbox.identity import ClaimKey
from tidegate_kernel.errors import RetryLater
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing


class Isolation:
    """One isolating pass over a batch. Use once."""

    def __init__(self, batch: Batch, claims: dict[int, ClaimKey], dispatcher: Dispatcher, judge: Judge) -> None:
        self._batch, self._claims, self._dispatcher, self._judge = batch, claims, dispatcher, judge
        self._again: list[BaseException] = []
        self._tried_at_once = 0
        self.failures: list[Failure] = list(batch.attempts.given_up.values())
        self.published: list[Outgoing] = []

    async def prepare(self, arrivals: Sequence[Arrival]) -> dict[int, object]:
        """Returns the prepared results by offset of those that could be prepared; the rest has failed."""
        prepared: dict[int, object] = {}
        for arrival in arrivals if self._dispatcher.prepares else ():
            try:
                prepared[arrival.record.offset] = await self._dispatcher.prepare(arrival)
            except HandlerFailed as failed:
                await self._note(failed)
        self.raise_if_unfinished()
        return prepared

    async def run(self, connection: Connection, arrivals: Sequence[Arrival], prepared: Prepared, gate: Gate) -> None:
        """In the caller's transaction: each of the (not yet claimed) `arrivals` was handled, is among `failures`, or is
        not admitted by `gate`, which closes behind each failure.

        Raises Transient when some must be tried again; the caller rolls everything back.
        """
        # `prepare` ran before the claims told duplicates apart, and what is parked: what failed for one of those, or
        # comes behind what fails only now, is nobody's dead letter.
        failed, self.failures = {failure.record.offset: failure for failure in self.failures}, []
        untried: list[Arrival] = []
        for arrival in arrivals:
            if (failure := failed.get(arrival.record.offset)) is None:
                untried.append(arrival)
                continue
            await self._try_all(untried, connection, prepared, gate)
            untried = []
            if gate.admits(arrival):
                self.failures.append(failure)
                gate.fail(arrival)
        await self._try_all(untried, connection, prepared, gate)
        self.raise_if_unfinished()

    async def _try_all(
        self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared, gate: Gate
    ) -> None:
        if self._dispatcher.takes_groups and not self._batch.attempts.is_one_by_one:
            await self._halve(connection, arrivals, prepared, gate)
            return
        for arrival in arrivals:
            await self._try(arrival, connection, prepared, gate)

    def raise_if_unfinished(self) -> None:
        """Raises the longest wait that some record asked for, if any did."""
        if self._again:
            first = self._again[0]
            waits = [error.after for error in self._again if isinstance(error, RetryLater)]
            # Its class, not its text: that may quote the record, and the wait is logged.
            told = f"{len(self._again)} records, the first for {type(first).__name__}"
            raise RetryLater(told, after=max(waits, default=0.0)) from first

    async def _halve(self, connection: Connection, arrivals: Sequence[Arrival], prepared: Prepared, gate: Gate) -> None:
        # The first half is done with: what failed there holds back what is of its keys here.
        arrivals = gate.admitted(arrivals)
        if not arrivals or await self._passes(arrivals, connection, prepared):
            return
        if len(arrivals) == 1:
            await self._try(arrivals[0], connection, prepared, gate)
            return
        middle = len(arrivals) // 2
        await self._halve(connection, arrivals[:middle], prepared, gate)
        await self._halve(connection, arrivals[middle:], prepared, gate)

    async def _passes(self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared) -> bool:
        if len(arrivals) == 1:
            return False
        try:
            self.published += await self._under_savepoint(arrivals, connection, prepared)
        except HandlerFailed as failed:
            if classify(failed.cause) is FailureClass.COLLISION:
                # To go on in parts would take locks in another order than everybody else, and collide again.
                await self._judge.raise_if_nobodys_fault(failed.cause)
            return False
        return True

    async def _try(self, arrival: Arrival, connection: Connection, prepared: Prepared, gate: Gate) -> None:
        if not gate.admits(arrival):
            return
        try:
            self.published += await self._under_savepoint([arrival], connection, prepared)
        except HandlerFailed as failed:
            await self._note(failed)
            # Also if it is tried again: what follows it may fail only because it is missing, and must not pay for that.
            gate.fail(arrival)

    async def _under_savepoint(
        self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared
    ) -> Sequence[Outgoing]:
        self._tried_at_once = len(arrivals)
        async with connection.transaction():
            published = await self._dispatcher.dispatch(arrivals, connection, prepared)
            try:
                # A deferred constraint must speak now, while we know whose it is, and not at the commit of all. It
                # also fails where a handler broke the transaction and swallowed the error.
                await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except Exception as error:
                raise HandlerFailed(arrivals[0], error) from error
            return published

    async def blame(self, failed: HandlerFailed) -> None:
        """The handler broke the connection, and with it the transaction: where it is given up, the batch's next attempt
        keeps its letter without calling it. Of several events in one call nobody knows whose fault it was: the next
        attempt tries each by itself. Raises Transient."""
        if self._tried_at_once > 1:
            self._batch.attempts.is_one_by_one = True
            return
        before = len(self.failures)
        await self._note(failed)
        for failure in self.failures[before:]:
            self._batch.attempts.given_up[failure.record.offset] = failure

    async def _note(self, failed: HandlerFailed) -> None:
        reason = await self._judge.verdict(self._batch.attempts, failed)
        if reason is None:
            self._again.append(failed.cause)
            return
        offset = failed.arrival.record.offset
        self.failures.append(
            failure_of_arrival(
                self._batch,
                failed.arrival,
                failed.cause,
                reason=reason,
                claim=self._claims.get(offset),
                handler=self._dispatcher.handler_name(failed.arrival),
            )
        )
