"""Isolating mode: find the records of a batch that fail, and let the others pass, in one transaction.

Each handler runs under a savepoint, so a failing one leaves nothing behind. Handlers that take lists are halved until
the failing record stands alone: k bad records among n cost O(k·log n) calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.batch import Batch
from consumers.decoding import Arrival
from consumers.dispatch import Dispatcher, HandlerFailed, Prepared
from consumers.failure import FailureClass, classify
from consumers.judging import Judge
from consumers.letters import failure_of_arrival
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
        self.failures: list[Failure] = []
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

    async def run(self, connection: Connection, arrivals: Sequence[Arrival], prepared: Prepared) -> None:
        """In the caller's transaction: each of the (not yet claimed) `arrivals` was handled or is among `failures`.

        Raises Transient when some must be tried again; the caller rolls everything back.
        """
        fresh = {arrival.record.offset for arrival in arrivals}
        # `prepare` ran before the claims told duplicates apart: what failed for one of those is nobody's dead letter.
        self.failures = [failure for failure in self.failures if failure.record.offset in fresh]
        given_up = {failure.record.offset for failure in self.failures}
        remaining = [arrival for arrival in arrivals if arrival.record.offset not in given_up]
        if self._dispatcher.takes_groups:
            await self._halve(connection, remaining, prepared)
        else:
            for arrival in remaining:
                await self._try([arrival], connection, prepared)
        self.raise_if_unfinished()

    def raise_if_unfinished(self) -> None:
        """Raises the longest wait that some record asked for, if any did."""
        if self._again:
            first = self._again[0]
            waits = [error.after for error in self._again if isinstance(error, RetryLater)]
            # Its class, not its text: that may quote the record, and the wait is logged.
            told = f"{len(self._again)} records, the first for {type(first).__name__}"
            raise RetryLater(told, after=max(waits, default=0.0)) from first

    async def _halve(self, connection: Connection, arrivals: Sequence[Arrival], prepared: Prepared) -> None:
        if not arrivals or await self._passes(arrivals, connection, prepared):
            return
        if len(arrivals) == 1:
            await self._try(arrivals, connection, prepared)
            return
        middle = len(arrivals) // 2
        await self._halve(connection, arrivals[:middle], prepared)
        await self._halve(connection, arrivals[middle:], prepared)

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

    async def _try(self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared) -> None:
        try:
            self.published += await self._under_savepoint(arrivals, connection, prepared)
        except HandlerFailed as failed:
            await self._note(failed)

    async def _under_savepoint(
        self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared
    ) -> Sequence[Outgoing]:
        async with connection.transaction():
            published = await self._dispatcher.dispatch(arrivals, connection, prepared)
            try:
                # A deferred constraint must speak now, while we know whose it is, and not at the commit of all. It
                # also fails where a handler broke the transaction and swallowed the error.
                await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except Exception as error:
                raise HandlerFailed(arrivals[0], error) from error
            return published

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
