"""The plan of a replay or a discard: which letters, of which kinds, and what may surprise. Nothing is changed by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import asyncpg

from dlq.runs import RunKind
from dlq.sequences import loose_keys
from dlq.states import MOST_REPLAYS, UNRESOLVED, LetterState
from inbox.store import claims_since, find_job
from tidegate.app import App
from tidegate.console.hazard_sentences import hazards_of
from tidegate.console.letters import LetterFilter, filter_arguments
from tidegate.console.replay_hazards import Found, Hazard, HazardCode, Sequences
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")

MOST_LETTERS = 1_000_000
"""A plan holds the id of each: 16 MB for so many, in the plan and in each question about them."""
_MOST_GROUPS = 100
_FIRST_FEW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """Letters of the plan that failed in the same way; `sample` is the newest, and the error is the sample's."""

    reason: str
    fingerprint: str
    letters: int
    first_failed_at: datetime
    last_failed_at: datetime
    sample: UUID
    error_class: str
    error_message: str
    handler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEvent:
    """An event that waits behind a letter of the plan."""

    event_id: str | None
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Which letters a run would have. The same letters, unchanged, have the same `digest`.

    `groups` are the largest of `all_groups`. `keys`: distinct record keys. `parked`: how many events behind the letters
    will be handled with them; `parked_first` are a few of those. `scopes`: whose letters and parked events that are.
    """

    job: str
    kind: RunKind
    is_forced: bool
    letters: Sequence[UUID]
    digest: str
    first_failed_at: datetime | None
    last_failed_at: datetime | None
    keys: int
    groups: Sequence[PlannedGroup]
    all_groups: int
    parked: int
    parked_first: Sequence[ParkedEvent]
    scopes: Sequence[Scope]
    hazards: Sequence[Hazard]

    @property
    def is_empty(self) -> bool:
        """Whether a run would find nothing to do: no letters, and nothing that an earlier one has left loose."""
        return not self.letters and all(hazard.code is not HazardCode.LOOSE for hazard in self.hazards)


async def plan_replay(
    connection: Connection,
    app: App,
    job: Job,
    wanted: LetterFilter | Sequence[UUID],
    *,
    kind: RunKind,
    is_forced: bool,
    most_replays: int = MOST_REPLAYS,
) -> ReplayPlan:
    """Returns what a run over the job's letters would be, as of one moment; `wanted.jobs` is not asked.

    Letters in another state than the wanted ones, and those that a run may not take, are left out and told as hazards;
    forced, the quarantined ones are taken where dead ones are wanted. The connection must not be in a transaction.
    Raises Misconfigured for a job that never started, letters that it does not have, and too many; Transient.
    """
    with translated_errors("plan a replay"):
        number = await find_job(connection, service=app.service, code=job.job_code)
        if number is None:
            raise Misconfigured(f"job {job.code!r} never started here, so it has no dead letters")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            # As for the pages: a generic plan would keep every filter that is not set, and know no number of letters.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            chosen, left_out = parted(await _matching(connection, job, number, wanted), wanted, is_forced=is_forced)
            return await _Planner(connection, job, number, kind, is_forced, most_replays).plan(chosen, left_out)


async def _matching(
    connection: Connection, job: Job, number: JobId, wanted: LetterFilter | Sequence[UUID]
) -> Sequence[asyncpg.Record]:
    if isinstance(wanted, LetterFilter):
        arguments = (looked_at(wanted), *filter_arguments(wanted), MOST_LETTERS + 1)
        rows = await connection.fetch(_QUERIES["letters_to_replay"], number, *arguments)
        refuse_too_many(job.code, len(rows))
        return rows
    refuse_too_many(job.code, len(wanted))
    rows = await connection.fetch(_QUERIES["named_letters_to_replay"], number, list(set(wanted)))
    refuse_unknown(job.code, wanted, rows)
    return rows


def looked_at(wanted: LetterFilter) -> Sequence[LetterState]:
    """Returns the states of letters that a plan looks at. Raises Misconfigured where all have been decided about."""
    if not (states := set(wanted.states) & set(UNRESOLVED)):
        raise Misconfigured(f"letters that are {' or '.join(wanted.states)} have been decided about already")
    # What is in somebody's hands, or was given up, is told, too.
    return sorted(states | {LetterState.REPLAYING, LetterState.QUARANTINED})


def refuse_unknown(code: str, wanted: Sequence[UUID], rows: Iterable[asyncpg.Record]) -> None:
    """Raises Misconfigured where one of the letters is not among the job's."""
    unknown = sorted(set(wanted) - {row["id"] for row in rows})
    if unknown:
        named = ", ".join(str(letter) for letter in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise Misconfigured(f"job {code!r} has no letter {named}{more}; 'tidegate dlq list' shows which it has")


def refuse_too_many(code: str, count: int) -> None:
    """Raises Misconfigured for more letters than a plan may have."""
    if count > MOST_LETTERS:
        raise Misconfigured(
            f"these are more than {MOST_LETTERS:,} letters of job {code!r}, the most for one run: take a part of "
            "them, as with --fingerprint or --until"
        )


def parted(
    rows: Iterable[asyncpg.Record], wanted: LetterFilter | Sequence[UUID], *, is_forced: bool
) -> tuple[Sequence[asyncpg.Record], Sequence[asyncpg.Record]]:
    """Returns those letters that a run may have, and those that it may not."""
    states = set(wanted.states) if isinstance(wanted, LetterFilter) else {LetterState.DEAD, LetterState.QUARANTINED}
    if LetterState.DEAD in states:
        states.add(LetterState.QUARANTINED)
    states &= {LetterState.DEAD, LetterState.QUARANTINED} if is_forced else {LetterState.DEAD}
    chosen: list[asyncpg.Record] = []
    left_out: list[asyncpg.Record] = []
    for row in rows:
        (chosen if row["state"] in states else left_out).append(row)
    return chosen, left_out


def digest_of(rows: Iterable[asyncpg.Record]) -> str:
    """Of the letters in the order given, and of all by which they may be others now than were looked at."""
    digest = sha256()
    for row in rows:
        digest.update(repr(tuple(map(str, row.values()))).encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Planner:
    """Asks what there is to be told of a selection of letters, in one transaction."""

    connection: Connection
    job: Job
    number: JobId
    kind: RunKind
    is_forced: bool
    most_replays: int

    async def plan(self, chosen: Sequence[asyncpg.Record], left_out: Sequence[asyncpg.Record]) -> ReplayPlan:
        letters = [row["id"] for row in chosen]
        facts = await self._facts(letters)
        around = await self._row(_QUERIES["planned_sequences"], self.number, letters, _FIRST_FEW)
        groups = await self.connection.fetch(_QUERIES["planned_groups"], letters, _MOST_GROUPS)
        found = Found(
            job=self.job.code,
            kind=self.kind,
            order=self.job.order,
            is_forced=self.is_forced,
            letters=len(letters),
            most_replays=self.most_replays,
            sequences=_sequences(around),
            facts=facts,
            states=Counter(LetterState(row["state"]) for row in left_out),
            runs=await self._runs(left_out),
            loose=len(await loose_keys(self.connection, self.number)),
        )
        return ReplayPlan(
            job=self.job.code,
            kind=self.kind,
            is_forced=self.is_forced,
            letters=letters,
            digest=digest_of(chosen),
            first_failed_at=facts["first_failed_at"],
            last_failed_at=facts["last_failed_at"],
            keys=facts["keys"],
            groups=[PlannedGroup(**{n: v for n, v in row.items() if n != "all_groups"}) for row in groups],
            all_groups=groups[0]["all_groups"] if groups else 0,
            parked=around["free"],
            parked_first=_parked_first(around),
            scopes=await self._scopes(letters, around["scopes"]),
            hazards=hazards_of(found),
        )

    async def _facts(self, letters: Sequence[UUID]) -> Mapping[str, Any]:
        topics = [topic.name for topic in self.job.topics]
        facts = dict(await self._row(_QUERIES["planned_facts"], letters, self.most_replays, topics))
        since = await claims_since(self.connection, self.number)
        if since is None:
            return facts | dict.fromkeys(("forgotten", "handled_since"), 0) | _NO_SAMPLES
        return facts | dict(await self._row(_QUERIES["forgotten_claims"], letters, since))

    async def _runs(self, left_out: Sequence[asyncpg.Record]) -> Sequence[int]:
        replaying = [row["id"] for row in left_out if row["state"] == LetterState.REPLAYING]
        rows = await self.connection.fetch(_QUERIES["runs_with_letters"], replaying) if replaying else []
        return [row["replay"] for row in rows]

    async def _scopes(self, letters: Sequence[UUID], parked: Iterable[Sequence[str]]) -> Sequence[Scope]:
        rows = await self.connection.fetch(_QUERIES["planned_scopes"], letters)
        pairs = {(row["tenant"], row["brand"]) for row in rows} | {(tenant, brand) for tenant, brand in parked}
        return [Scope(*pair) for pair in sorted(pairs)]

    async def _row(self, query: str, *arguments: object) -> asyncpg.Record:
        row = await self.connection.fetchrow(query, *arguments)
        assert row is not None  # an aggregate always answers
        return row


_NO_SAMPLES = {"forgotten_sample": None, "handled_since_sample": None}


def _sequences(row: asyncpg.Record) -> Sequences:
    return Sequences(
        free=row["free"],
        held=row["held"],
        behind=row["behind"],
        earlier=row["earlier"],
        earlier_first=row["earlier_first"],
        need_force=row["need_force"],
    )


def _parked_first(row: asyncpg.Record) -> Sequence[ParkedEvent]:
    columns = (row["free_ids"], row["free_topics"], row["free_partitions"], row["free_offsets"])
    return [
        ParkedEvent(event_id=event_id, topic=topic, partition=partition, offset=offset)
        for event_id, topic, partition, offset in zip(*columns, strict=True)
    ]
