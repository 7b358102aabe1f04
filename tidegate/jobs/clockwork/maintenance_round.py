"""A run of Tidegate's own upkeep: a round, whose chunks are transactions of their own, and not all of them in Postgres.

Told after each chunk how many things that removed, the run writes the number down under its token, and ends the round
where somebody wants that, or it is another's by now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from dlq.cause import cause_of
from tidegate.jobs.clockwork.runner import Ending, asked_to_end
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState, Tally, settle_unit
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel.errors import Misconfigured, Reason, Transient
from tidegate_kernel.rounds import Tell

Round: TypeAlias = Callable[[Tell], Awaitable[Any]]
"""One round of upkeep. Raises Transient, Misconfigured, LeaseLost for what stood in its way."""


class _Ended(Exception):
    """Somebody wants the round to end."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.why)
        self.ending = ending


class UpkeepRoad:
    """What a run does: one round. It has no checkpoint: each begins at the start, and finds less to remove."""

    checkpoint = None

    def __init__(self, round_: Round, hands: RunHands, run: ClaimedRun) -> None:
        self._round, self._hands, self._run = round_, hands, run

    async def work(self) -> Ending:
        """Raises LeaseLost. A round that something stood in the way of is a failed run, which has retries."""
        try:
            await self._round(self._tell)
        except _Ended as ended:
            return ended.ending
        except (Transient, Misconfigured) as error:
            return Ending(RunState.FAILED, cause=cause_of(error, Reason.HANDLER_FAILED))
        return Ending(RunState.DONE)

    async def _tell(self, removed: int) -> None:
        """The run has come so far, as far as it is still this process's. Raises LeaseLost; _Ended to end the round."""
        async with self._hands.transaction() as connection:
            wish = await settle_unit(connection, self._run, Tally(processed=removed), cursor=None)
        self._hands.metrics.run_items.labels(self._hands.job.code, "processed").inc(removed)
        if (ending := asked_to_end(self._hands, wish)) is not None:
            raise _Ended(ending)
