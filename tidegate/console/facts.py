"""What is known of one partition of a job, from all who know something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consumers.intents import Intent, IntentKind
from consumers.presence import State
from tidegate.console.lag import LivePosition, Log
from tidegate.console.views import View
from tidegate_kernel.event import TopicPartition

UNSEEN_SECONDS = 30.0
"""An owner speaks every ten seconds; one that missed it twice is gone, or cannot reach Postgres."""


class Said(NamedTuple):
    """What a partition's owner last said of it; both ages are in seconds, by the database's clock."""

    owner: str
    state: State
    detail: str
    since_seconds: float
    seen_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that is known of one partition of a job.

    `log` None: Kafka has no such partition, unless `kafka_trouble` says why it could not be asked. `still_seconds`:
    since when its position has not moved. `has_workers`: other partitions of the job have an owner. `parked`: how many
    of its events wait behind dead letters of their keys. `view`: what readers see of it, if the job has any.
    """

    job: str
    partition: TopicPartition
    position: LivePosition | None = None
    log: Log | None = None
    kafka_trouble: str | None = None
    said: Said | None = None
    intents: Sequence[Intent] = ()
    still_seconds: float = 0.0
    has_workers: bool = False
    parked: int = 0
    view: View | None = None

    @property
    def where(self) -> str:
        return str(self.partition)

    @property
    def owner_speaks(self) -> bool:
        """Whether somebody owns the partition, or is about to."""
        return (
            self.said is not None and self.said.state is not State.RELEASED and self.said.seen_seconds <= UNSEEN_SECONDS
        )

    @property
    def behind(self) -> int | None:
        """Offsets before the log's end; None where Kafka or the position is not known."""
        if self.log is None:
            return None
        first = self.log.range.start if self.position is None else self.position.next_offset
        return max(0, self.log.range.end - max(first, self.log.range.start))

    def pauses(self) -> Iterator[Intent]:
        """Standing pauses that cover all of the partition."""
        return (i for i in self.intents if i.kind is IntentKind.PAUSE and i.covers(self.partition))

    def paused_tenants(self) -> Iterator[Intent]:
        return (i for i in self.intents if i.tenant is not None)


def ago(seconds: float) -> str:
    """A duration to read: 12 s, 5 min, 3 h, 2 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
