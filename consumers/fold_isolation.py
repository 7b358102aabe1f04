"""Isolating mode of a fold: one pass in memory tells the events that fail, and the others pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from consumers.batch import Batch
from consumers.decoding import Arrival
from consumers.dispatch import Dispatcher, HandlerFailed, Prepared
from consumers.failure import poison_reason
from consumers.folding import Folder, blaming
from consumers.isolation import Isolation
from consumers.judging import Judge
from consumers.letters import failure_of_arrival
from consumers.order import Gate
from inbox.identity import ClaimKey
from tidegate_kernel.postgres import Connection


class FoldIsolation(Isolation):
    """One isolating pass over a batch of a fold: the states are locked, read and written once. Use once."""

    def __init__(self, batch: Batch, claims: dict[int, ClaimKey], folder: Folder, judge: Judge) -> None:
        super().__init__(batch, claims, folder, judge)
        self._folder = folder

    async def _try_all(
        self,
        arrivals: Sequence[Arrival],
        connection: Connection,
        prepared: Prepared,  # noqa: ARG002  # part of the interface
        gate: Gate,
    ) -> None:
        keys, unkeyed = self._keys(arrivals)
        folding = await self._folder.begin(connection, (key for key in keys.values() if key is not None))
        for arrival in arrivals:
            if not gate.admits(arrival):
                continue
            offset = arrival.record.offset
            try:
                if offset in unkeyed:
                    raise unkeyed[offset]
                if (key := keys[offset]) is not None:
                    blaming(arrival, partial(folding.fold_safely, key, arrival))
            except HandlerFailed as failed:
                self._keep(failed)
                gate.fail(arrival)
        await self._folder.write(connection, folding.changes())

    def _keys(self, arrivals: Sequence[Arrival]) -> tuple[dict[int, str | None], dict[int, HandlerFailed]]:
        """Whose states the arrivals change, by offset, and of which that cannot be told."""
        keys: dict[int, str | None] = {}
        unkeyed: dict[int, HandlerFailed] = {}
        for arrival in arrivals:
            try:
                keys[arrival.record.offset] = self._folder.key(arrival)
            except HandlerFailed as failed:
                unkeyed[arrival.record.offset] = failed
        return keys, unkeyed

    def _keep(self, failed: HandlerFailed) -> None:
        arrival = failed.arrival
        self.failures.append(
            failure_of_arrival(
                self._batch,
                arrival,
                # The letter tells of what the user's code raised.
                failed.__cause__ or failed.cause,
                reason=poison_reason(failed.cause),
                claim=self._claims.get(arrival.record.offset),
                handler=self._folder.handler_name(arrival),
            )
        )


def isolation_of(batch: Batch, claims: dict[int, ClaimKey], dispatcher: Dispatcher, judge: Judge) -> Isolation:
    """Returns what finds the failing events of a batch: by savepoints, or of a fold in memory."""
    if isinstance(dispatcher, Folder):
        return FoldIsolation(batch, claims, dispatcher, judge)
    return Isolation(batch, claims, dispatcher, judge)
