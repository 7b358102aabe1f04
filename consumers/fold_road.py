"""The road of a fold: that of a job with handlers, and its renderer hears of what was settled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from consumers.batch import Batch, Outcome
from consumers.decoding import Decoded
from consumers.folding import Folder
from consumers.judging import Judge
from consumers.ledger import Ledger
from consumers.parking import Parking
from consumers.pipeline import CommandRoad


class FoldRoad(CommandRoad):
    """States, claims, dead letters and position in one transaction; `notice` is called when it has committed."""

    def __init__(
        self,
        ledger: Ledger,
        parking: Parking,
        folder: Folder,
        judge: Judge,
        *,
        silence_limit: timedelta,
        notice: Callable[[], None],
    ) -> None:
        super().__init__(ledger, parking, folder, judge, silence_limit=silence_limit)
        self._notice = notice

    async def settle(self, batch: Batch, decoded: Decoded) -> Outcome:
        outcome = await super().settle(batch, decoded)
        if outcome.applied:
            self._notice()
        return outcome
