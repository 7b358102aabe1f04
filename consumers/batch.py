"""The unit of work on the road: some records of one partition, and what became of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from consumers.failure import FailureClass
from dlq.corrections import NO_CORRECTIONS, Correction
from dlq.letters import Failure
from dlq.parking import OrderKey
from tidegate_kernel.errors import Poison
from tidegate_kernel.event import Fence, Record


@dataclass(slots=True)
class Attempts:
    """What is remembered of a batch between its attempts: failures by offset and class, and how it must be tried next.

    `given_up`: dead letters of handlers that broke the transaction in which they were to be kept, by offset.
    `is_one_by_one`: the connection broke under a call for several events, in which one of them failed.

    A few time-outs do not make the first defect the last one: each class of failure has a count of its own.
    """

    failures: dict[int, Counter[FailureClass]] = field(default_factory=lambda: defaultdict(Counter))
    given_up: dict[int, Failure] = field(default_factory=dict)
    tries: int = 0
    is_isolating: bool = False
    is_one_by_one: bool = False

    def count(self, offset: int, failure: FailureClass) -> int:
        """One more failure of that class at `offset`; returns how many there are now."""
        self.failures[offset][failure] += 1
        return self.failures[offset][failure]

    def made_at(self, offset: int) -> int:
        """How many attempts at `offset` have failed, for whatever reason."""
        return self.failures[offset].total() if offset in self.failures else 0


@dataclass(frozen=True, slots=True)
class Stop:
    """The record at `offset` must not be handled now, and `why`.

    It is of a paused `tenant`; or it has to be parked, and there is no room for its key, which is `full`.
    """

    offset: int
    why: str
    tenant: str | None = None
    full: OrderKey | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition, none below the fence's offset. Settled, the position is `next_offset`.

    `unreadable` says why its only record cannot be handed over by the client: what it holds then is a stand-in.
    `corrections` are those of its partition by offset, perhaps of none of its records: nearly always there are none.
    `is_begun`: it was begun before, perhaps by another owner, and has to be applied whole (`consumers/stable.py`).
    """

    fence: Fence
    topic_id: UUID
    records: Sequence[Record]
    next_offset: int
    attempts: Attempts = field(default_factory=Attempts)
    unreadable: Poison | None = None
    corrections: Mapping[int, Correction] = field(default_factory=lambda: NO_CORRECTIONS)
    is_begun: bool = False

    def before(self, offset: int) -> Batch:
        """The part below `offset`, with the same attempts; it may be without records."""
        return replace(self, records=[r for r in self.records if r.offset < offset], next_offset=offset)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the records of a settled batch; the counts add up to their number.

    With a `stop` only those before its offset were handled and settled, if there are any.
    """

    applied: int = 0
    duplicates: int = 0
    skipped: int = 0
    stale: int = 0
    parked: int = 0
    failures: Sequence[Failure] = ()
    stop: Stop | None = None
