"""Tidegate's own upkeep as maintenance jobs: due by the clock, run under its leases, told of as any other job.

What they do stands with what they keep: `inbox.upkeep`, `dlq.forgetting`, `tidegate.jobs.tombstones`, `history`; how a
run does it, in `maintenance_round`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from tidegate.jobs.clockwork.declaration import ClockJob, Page
from tidegate.jobs.clockwork.maintenance_job import ByRule, MaintenanceJob
from tidegate.jobs.clockwork.schedule import Every
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate.jobs.text import Text, Words

RESERVED = "tidegate."
"""What codes of these jobs begin with, and no others may."""

INBOX, LETTERS, RUNS = f"{RESERVED}inbox", f"{RESERVED}letters", f"{RESERVED}runs"
AUDIT = f"{RESERVED}audit"

# Nobody waits for it: it is looked for seldom, which costs an idle service next to nothing.
UPKEEP_HEARTBEAT = timedelta(seconds=60)
UPKEEP_LEASE_TTL = UPKEEP_HEARTBEAT * 1.5

# As often as it always was, but for letters: they are kept for months, and lie for an hour more.
_EVERY = Every(timedelta(hours=1))
_DAILY = Every(timedelta(days=1))
# Not all of them in one second, nor all services of a database at once.
_SPREAD = timedelta(minutes=10)
# Two parts of the inbox may be swept for forty minutes each, and a large day searched for a quarter of an hour.
_LONGEST = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class UpkeepRound:
    """A round of Tidegate's own upkeep. No handler of an application takes it."""

    page: Page


def upkeep_jobs(sinks: Sequence[str]) -> Sequence[MaintenanceJob]:
    """The jobs of a service's own upkeep; `sinks`: codes of its jobs that write to a store."""
    return [
        _job(
            INBOX,
            Text(en="the longest of the jobs' dedupe_horizon", ru="наибольший dedupe_horizon всех job"),
            Text(
                en="Forgets the ids of events that cannot come again.", ru="Забывает id событий, которые уже не придут."
            ),
        ),
        _job(
            LETTERS,
            "TIDEGATE_LETTER_RETENTION",
            Text(en="Removes dead letters that were decided long ago.", ru="Удаляет давно решённые сообщения DLQ."),
        ),
        _job(
            RUNS,
            Text(en="each job's history", ru="history каждого job"),
            Text(
                en="Forgets runs that ended long ago, and what they did.",
                ru="Забывает давно завершённые запуски и то, что они сделали.",
            ),
        ),
        # It is told in the audit by each removal: once a day, or it would tell of little else.
        replace(
            _job(
                AUDIT,
                "TIDEGATE_AUDIT_RETENTION",
                Text(
                    en="Removes rows of the audit that are past their time, the oldest first.",
                    ru="Удаляет строки аудита, отслужившие свой срок, начиная со старейших.",
                ),
            ),
            trigger=_DAILY,
            is_sensitive=True,
        ),
        *(
            _job(
                tombstones_of(code),
                Text(
                    en="the retention of the job's topics, its oldest undecided letter and its unfinished backfill",
                    ru="срок хранения топиков job, старейшее нерешённое сообщение DLQ и незавершённый backfill",
                ),
                Text(
                    en=f"Removes tombstones from the store of {code} that nothing older can come for.",
                    ru=f"Удаляет из хранилища {code} tombstone, для которых уже не придёт ничего более старого.",
                ),
            )
            for code in sinks
        ),
    ]


def is_upkeep(job: ClockJob) -> bool:
    """Whether the job is Tidegate's own: a round, without a query, items or a checkpoint."""
    return job.code.startswith(RESERVED)


def tombstones_of(code: str) -> str:
    """The code of the job that keeps the store of the job `code`."""
    return f"{RESERVED}tombstones.{code}"


def _job(code: str, rule: Words, purpose: Words) -> MaintenanceJob:
    return MaintenanceJob(
        code=code,
        trigger=_EVERY,
        jitter=_SPREAD,
        retention=ByRule(rule),
        is_sensitive=False,
        query=UpkeepRound,
        command=_itself,
        key=str,
        scopes=AcrossScopes(
            Text(
                en="what Tidegate keeps of all tenants leaves by one rule",
                ru="данные всех tenant в самом Tidegate удаляются по одному правилу",
            )
        ),
        owner="Tidegate",
        purpose=purpose,
        max_duration=_LONGEST,
        history=timedelta(days=7),
        runbook="docs/operations/jobs.md",
    )


def _itself(round_: UpkeepRound) -> UpkeepRound:
    return round_
