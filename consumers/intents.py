"""What is wanted of a job: pauses by operators, the stop after a flood of dead letters, the rest while too much of it
waits for Kafka. Workers read it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

import asyncpg

from consumers.backlog import Backlog
from consumers.ownership import Hold
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobId, TopicPartition
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class IntentKind(StrEnum):
    """Who decided it, and what ends it."""

    PAUSE = "pause"
    FLOOD = "flood"


@dataclass(frozen=True, slots=True)
class Intent:
    """A standing intent. A `topic`, `partition` or `tenant` of None means all of them.

    `seconds_left` was counted by the database's clock when the row was read; None: until somebody ends it.
    """

    id: int
    kind: IntentKind
    topic: str | None
    partition: int | None
    tenant: str | None
    reason: str
    actor: str
    started_at: datetime
    until: datetime | None
    seconds_left: float | None

    def covers(self, partition: TopicPartition) -> bool:
        """Whether all of `partition` has to rest. A tenant's intent covers no partition: only what is the tenant's."""
        return (
            self.tenant is None
            and self.topic in (None, partition.topic)
            and self.partition in (None, partition.partition)
        )

    def sentence(self) -> str:
        """By whom, until when and why, for a person."""
        verb = "paused by" if self.kind is IntentKind.PAUSE else "stopped for a flood of dead letters by"
        return f"{verb} {self.actor} {_until(self.until)}: {self.reason}"


class Intents:
    """The standing intents of one job as this process last read them.

    They stay in force while Postgres cannot be asked, each until its own end: to go on for want of an answer would undo
    what an operator decided.
    """

    def __init__(self, pool: Pool, clock: Clock, *, job: JobId, backlogs: Sequence[Backlog] = ()) -> None:
        self._pool, self._clock, self._job, self._backlogs = pool, clock, job, backlogs
        self._read: list[tuple[Intent, float | None]] = []

    async def read(self) -> None:
        """What stands now is known; on an error what was known stays. Raises Transient."""
        with translated_errors("read intents"):
            async with self._pool.acquire(timeout=10) as connection:
                rows = await connection.fetch(_QUERIES["standing_intents"], self._job)
        now = self._clock.monotonic()
        self._read = [(each, _deadline(each, now)) for each in map(intent_of, rows)]
        for backlog in self._backlogs:
            await backlog.read()

    def standing(self) -> list[Intent]:
        """Those that have not reached their end."""
        now = self._clock.monotonic()
        return [intent for intent, deadline in self._read if deadline is None or now < deadline]

    def holds(self, partition: TopicPartition) -> Mapping[Hold, str]:
        """Why all of `partition` has to rest, the oldest intent of a kind first."""
        wanted: dict[Hold, str] = {}
        for intent in self.standing():
            if intent.covers(partition):
                wanted.setdefault(_HOLDS[intent.kind], intent.sentence())
        for backlog in self._backlogs:
            if backlog.is_full:
                wanted.setdefault(Hold.BACKLOG, backlog.why)
        return wanted

    def tenants(self) -> Mapping[str, str]:
        """The paused tenants, and why."""
        return {
            each.tenant: f"tenant {each.tenant!r} {each.sentence()}"
            for each in reversed(self.standing())  # of two for one tenant the older is told
            if each.tenant is not None
        }


_HOLDS = {IntentKind.PAUSE: Hold.PAUSED, IntentKind.FLOOD: Hold.FLOOD}
OBEYED = frozenset({*_HOLDS.values(), Hold.BACKLOG})
"""The holds that are set and released by what is read here alone."""


def intent_of(row: asyncpg.Record) -> Intent:
    """A row that has the columns of `standing_intents`, perhaps among others."""
    columns = {each.name: row[each.name] for each in fields(Intent)}
    return Intent(**{**columns, "kind": IntentKind(row["kind"])})


def _deadline(intent: Intent, now: float) -> float | None:
    return None if intent.seconds_left is None else now + intent.seconds_left


def _until(until: datetime | None) -> str:
    return "until somebody resumes it" if until is None else f"until {until:%Y-%m-%d %H:%M:%SZ}"
