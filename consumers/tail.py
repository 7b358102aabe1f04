"""The end of a log: who has reached it is caught up, and stands behind what holds no record there."""

from __future__ import annotations

from collections.abc import Sequence

from consumers.ownership import Holding, Holdings
from consumers.steward import Steward
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import StaleOwner, Transient
from tidegate_kernel.source import RecordSource

# Every transaction of a producer ends in a marker: a statement for each would cost as much as the batches.
_PASS_EVERY_SECONDS = 10.0


class Tail:
    """Looks after the partitions of which a lane's fetch brought nothing."""

    def __init__(self, source: RecordSource, steward: Steward, holdings: Holdings, clock: Clock) -> None:
        self._source, self._steward, self._holdings, self._clock = source, steward, holdings, clock

    async def note(self, quiet: Sequence[Holding]) -> None:
        """Those of `quiet` whose log has ended are caught up now; their positions do not stay before hidden offsets."""
        now = self._clock.now()
        for held in quiet:
            if held.is_drained(self._source):
                held.caught_up_at = now
        for held in quiet:
            await self._pass_hidden(held)

    async def _pass_hidden(self, held: Holding) -> None:
        """The position stands at the log's end, also where markers or aborted records are the last there is.

        Left before them it would look, once retention has removed them, as if records had been lost.
        """
        now, end = self._clock.monotonic(), held.hidden_tail(self._source)
        # Seen twice: what the client had still to tell of these offsets, the fetch in between would have raised.
        was_seen, held.tail_seen = end is not None and end == held.tail_seen, end
        if end is None or not was_seen or now < held.tail_due or not self._holdings.is_current(held):
            return
        held.tail_due = now + _PASS_EVERY_SECONDS
        try:
            held.position = await self._steward.pass_hidden(held.partition, held.position, next_offset=end)
        except (StaleOwner, Transient):
            return  # nothing depends on it; a lost partition shows with its next batch
