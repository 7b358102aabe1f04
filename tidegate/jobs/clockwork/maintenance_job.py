"""What an application declares of a job that removes what has been kept for long enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.jobs.clockwork.declaration import ClockJob, PartialFailure, Unit
from tidegate.jobs.clockwork.schedule import LONGEST
from tidegate.jobs.text import Words
from tidegate_kernel.errors import Misconfigured

# Longer than the retries of a run go on. After that nobody asks: what was removed is gone.
_REMOVALS_KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ByRule:
    """How long something is kept stands in the data, as an export's own end does; `words` tell people the rule."""

    words: Words

    def __post_init__(self) -> None:
        if not str(self.words).strip():
            raise Misconfigured("ByRule needs words: what says how long each item is kept?")

    def __str__(self) -> str:
        return str(self.words)


@dataclass(frozen=True, kw_only=True)
class MaintenanceJob(ClockJob):
    """Removes what has been kept for long enough, in chunks of `batch_size`. `ClockJob` explains the other fields.

    `retention`: for how long, a hundred years at most, or `ByRule(words)`. With a period its query takes what is older
    than `page.occasion.expired_before`: reckoned from the occasion, and never from a time that the database has not
    reached.
    Handlers of its commands remove; `handle_batch` gets a whole chunk. A chunk is one transaction, with its checkpoint.
    What cannot be removed is tried again by the next run, unless `partial_failure` says otherwise.

    `is_sensitive`: whether what it removes is somebody's data. Then each chunk that removed something has a row in the
    audit, in its transaction: job, run, tenant and how many, and nothing of what it was. An item's `key` stands in
    Tidegate's own tables for a day, or while it cannot be removed; that of the last one until the next run. Let it be
    an id, not a name.
    """

    retention: timedelta | ByRule
    is_sensitive: bool
    partial_failure: PartialFailure = "continue"
    unit: Unit = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_retention()
        if self.checkpoint == "job":
            raise self.wrong("checkpoint", "must be 'run': what could not be removed is behind the last run's end")

    def _check_retention(self) -> None:
        kept = self.retention
        if isinstance(kept, ByRule):
            return
        if not isinstance(kept, timedelta):
            raise self.wrong(
                "retention",
                f"must be a timedelta or ByRule(words), not {kept!r}: for how long is kept what it removes?",
            )
        if not timedelta(0) < kept <= LONGEST:
            raise self.wrong(
                "retention",
                f"must be positive and {LONGEST.days} days at most, not {kept}; what is kept for ever needs no job",
            )

    @property
    def results_kept(self) -> timedelta:
        return min(_REMOVALS_KEPT, self.history)

    @property
    def forgets_failures(self) -> bool:
        return self.forgets_items and self.partial_failure == "continue"

    def expired_before(self, moment: datetime) -> datetime | None:
        """What is older than this has been kept for long enough at `moment`; None where a rule decides."""
        return moment - self.retention if isinstance(self.retention, timedelta) else None
