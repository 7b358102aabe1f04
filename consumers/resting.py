"""How far the logs of resting partitions have grown: nothing is fetched of them, so no answer to a fetch tells."""

from __future__ import annotations

from consumers.ownership import Holdings
from tidegate_kernel.cancellation import raise_if_cancelled
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.source import RecordSource

# Bounds how old the lag of a paused partition is when it is read; asking costs one request per broker.
LOOK_EVERY_SECONDS = 5.0


async def watch_ends(source: RecordSource, holdings: Holdings, clock: Clock) -> None:
    """Until cancelled: what rests knows where its log ends."""
    while True:
        await clock.sleep(LOOK_EVERY_SECONDS)
        resting = {held.partition: held for held in holdings.all() if not held.is_ready}
        if not resting:
            continue
        try:
            ranges = await source.ranges(list(resting))
        except Transient as error:
            raise_if_cancelled(error)
            continue  # what was known stays; that Kafka does not answer is told elsewhere
        for partition, log in ranges.items():
            resting[partition].note_log_end(log.end, clock.now())
