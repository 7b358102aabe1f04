"""What became of dead letters, told on the job's DLQ topic, so that the topic alone says which of them still stand.

Of what the topic tells about one letter the latest time counts, whatever the order of its records: one without a key
may land in any partition, and so may every one once the topic has more partitions. So the times of a letter only grow,
also where the clocks of two processes disagree: an outcome is told later than the failure that it is about, and a
failure after it later still (`record_letters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from dlq.envelope import outcome_record
from dlq.letters import Origin
from dlq.states import LetterState
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connection

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Decided:
    """A letter that last failed at `failed_at` came to its end at `at`, in one of `states.FINAL`.

    `key`: that of its record.
    """

    letter: UUID
    key: bytes | None
    state: LetterState
    at: datetime
    failed_at: datetime

    @property
    def told_at(self) -> datetime:
        """Later than the failure, also by the clock of another host."""
        return max(self.at, self.failed_at + _TICK)


async def tell_outcomes(connection: Connection, origin: Origin, decided: Sequence[Decided]) -> None:
    """`decided` will be told on the DLQ topic, if and when the caller's transaction commits; one round trip.

    The caller holds the letters' rows, whose states it has changed. Raises Transient if Postgres or the road to it
    failed.
    """
    await enqueue(
        connection,
        [
            outcome_record(
                letter=one.letter,
                key=one.key,
                job=origin.job_code,
                state=one.state,
                decided_at=one.told_at,
                topic=origin.dlq_topic,
            )
            for one in decided
        ],
        kind="dead_letter",
    )
