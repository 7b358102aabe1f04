"""Items that failed: which there are, and what a person may decide about them. They are a job's dead letters.

Done again they are by a run of their own (`ClaimedRun.is_replay`): of the occasion in which they failed, with what that
run was told, and nothing else. The job's query answers with them anew, so that what was mended meanwhile counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from dlq.letters import text_for_postgres
from dlq.runs import RunKind
from dlq.states import FORCE_HELPS, QUARANTINED_WHY, LetterState
from inbox.store import find_job
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.letters import LetterHome, replay_instruction
from tidegate.jobs.clockwork.runs import ClockRunId
from tidegate.jobs.clockwork.scopes import is_storable, lock_name
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.errors import Conflict, Denied, Misconfigured
from tidegate_kernel.event import JobId, Scope
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostItem:
    """An item that failed. `key`: by what it is done once; one that is `quarantined` is tried by no run under it again.

    Unless the job says otherwise the key holds the occurrence, so that a run of the next tries the item anew.

    `letter`: the dead letter that a quarantined one is. `replay`: the run that somebody has asked to do it again.
    `is_quarantined`: the letter has failed in as many replays as there may be; only a forced one takes it again.
    """

    code: str
    tenant: str
    brand: str
    key: str
    run: ClockRunId
    outcome: str
    error_class: str | None
    error_message: str | None
    decided_at: datetime
    letter: UUID | None
    reason: str | None
    handler: str | None
    stack: str | None
    fingerprint: str | None
    attempts: int | None
    occurrences: int | None
    first_failed_at: datetime | None
    scheduled_at: datetime | None
    correlation_id: UUID | None
    replays: int
    replay: int | None
    is_quarantined: bool

    @property
    def instruction(self) -> str | None:
        """The command that has it done again; None for one that the next run tries by itself."""
        if self.letter is None:
            return None
        return replay_instruction(self.code, Scope(self.tenant, self.brand), self.letter)


async def lost_items(connection: Connection, service: str, *, code: str | None, limit: int) -> Sequence[LostItem]:
    """Returns items that failed and that nobody has done or discarded, the newest first. Raises Transient."""
    with translated_errors("read items"):
        rows = await connection.fetch(_QUERIES["lost_items"], service, code, limit)
    return [LostItem(**row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemChoice:
    """Which items of a scope somebody means: some by their keys, some by their letters, or all letters.

    `is_forced`: also those that have failed in as many replays as there may be.
    """

    job: ClockJob
    scope: Scope
    keys: Sequence[str] = ()
    letters: Sequence[UUID] = ()
    is_forced: bool = False

    def __post_init__(self) -> None:
        if not all(map(is_storable, (*self.keys, self.scope.tenant, self.scope.brand))):
            raise Misconfigured(
                "an item, a tenant or a brand is named by UTF-8 without NUL, and this is something else"
            )

    @property
    def is_all(self) -> bool:
        return not self.keys and not self.letters


class Replayed(NamedTuple):
    """Items that will be done again, and the runs that do it."""

    items: int
    runs: Sequence[ClockRunId]


async def replay_items(
    database: Connection | Pool,
    actor: Actor,
    service: str,
    choice: ItemChoice,
    *,
    reason: str,
    now: datetime,
    approval_above: int | None = None,
) -> Replayed:
    """Runs are due that do the items again, one for each occasion in which some failed.

    Raises Denied, also without a reason, and for more than `approval_above`; Misconfigured where one of the items has
    not failed, or is being done again already; Conflict where all those named have been replayed too often; Transient.
    """
    async with permitted(database, actor, _deed(service, choice, Action.DLQ_REPLAY, reason)) as connection:
        decision = await _decide(connection, service, choice, approval_above)
        runs = []
        for (scheduled_at, failed_in), keys in decision.by_occasion().items():
            scope, arguments = decision.scope, (scheduled_at, now, decision.lock_name(service), failed_in)
            told = (actor.name, text_for_postgres(reason.strip()))
            run = await connection.fetchval(_QUERIES["ask_for_replay"], *scope, *arguments, *told)
            await connection.execute(_QUERIES["replay_items"], *scope, keys, run)
            runs.append(ClockRunId(run))
        return Replayed(len(decision.rows), runs)


async def discard_items(
    database: Connection | Pool,
    actor: Actor,
    service: str,
    choice: ItemChoice,
    *,
    reason: str,
    topic: str,
    approval_above: int | None = None,
) -> int:
    """Nobody will do the items, and `topic`, that of the job's letters, is told; returns how many they are.

    Raises as `replay_items`.
    """
    async with permitted(database, actor, _deed(service, choice, Action.DLQ_DISCARD, reason)) as connection:
        decision = await _decide(connection, service, choice, approval_above)
        rows, home = decision.rows, LetterHome(service, choice.job.code, topic)
        await connection.execute(_QUERIES["discard_items"], *decision.scope, [row["key"] for row in rows])
        at = await connection.fetchval("SELECT now()")
        told = [
            home.outcome(row["letter"], row["place"], LetterState.DISCARDED, at=at) for row in rows if row["letter"]
        ]
        await enqueue(connection, told, kind="dead_letter")
        return len(rows)


@dataclass(frozen=True, slots=True)
class _Decision:
    """Items that are locked by the transaction that decides about them."""

    number: JobId
    choice: ItemChoice
    rows: Sequence[asyncpg.Record]

    @property
    def scope(self) -> tuple[int, str, str]:
        return self.number, self.choice.scope.tenant, self.choice.scope.brand

    def lock_name(self, service: str) -> str:
        job = self.choice.job
        return lock_name(service, job.lock_key or job.code, self.choice.scope)

    def by_occasion(self) -> Mapping[tuple[datetime, int], list[str]]:
        """Keys by what their runs were made for, and by those runs: each was told parameters of its own."""
        found: defaultdict[tuple[datetime, int], list[str]] = defaultdict(list)
        for row in self.rows:
            found[row["scheduled_at"], row["run"]].append(row["key"])
        return found


async def refuse_items(
    database: Connection | Pool,
    actor: Actor,
    service: str,
    kind: RunKind,
    choices: Sequence[ItemChoice],
    *,
    reason: str,
) -> None:
    """Nothing happens if the actor may decide about all of them; else it is refused and audited.

    For choices of several scopes, each of which is a deed of its own. Raises Denied, Transient.
    """
    action = Action.DLQ_REPLAY if kind is RunKind.REPLAY else Action.DLQ_DISCARD
    for choice in choices:
        await refuse_early(database, actor, _deed(service, choice, action, reason))


async def items_of_choice(connection: Connection, service: str, choice: ItemChoice) -> Sequence[asyncpg.Record]:
    """Returns what is known of the items for a plan; nothing changes. Raises Misconfigured where one has not failed."""
    number = await find_job(connection, service=service, code=choice.job.job_code)
    if number is None:
        return _all_there(choice, [])
    return _all_there(choice, await connection.fetch(_QUERIES["items_of_choice"], number, *_arguments(choice)))


def _deed(service: str, choice: ItemChoice, action: Action, reason: str) -> Deed:
    scope = choice.scope
    # How many and not which: a key may be somebody's.
    told: dict[str, object] = {"items": "all" if choice.is_all else len(choice.keys) + len(choice.letters)}
    if choice.is_forced:
        told["forced"] = True
    target = f"{service}.{choice.job.code}"
    return Deed(action, target, reason, told, tenant=scope.tenant or None, brand=scope.brand or None)


async def _decide(connection: Connection, service: str, choice: ItemChoice, approval_above: int | None) -> _Decision:
    number = await find_job(connection, service=service, code=choice.job.job_code)
    rows = [] if number is None else await connection.fetch(_QUERIES["items_to_decide"], number, *_arguments(choice))
    meant = _unless_quarantined(choice, _all_there(choice, rows))
    if approval_above is not None and len(meant) > approval_above:
        raise Denied(
            f"{len(meant)} items are more than {approval_above} (TIDEGATE_REPLAY_APPROVAL_ABOVE), for which a second "
            "person is needed, and a run over items waits for none: take fewer at once, as with --letter or --until"
        )
    return _Decision(number or JobId(0), choice, meant)


def _arguments(choice: ItemChoice) -> tuple[object, ...]:
    keys, letters = (None, None) if choice.is_all else (list(choice.keys), list(choice.letters))
    return choice.scope.tenant, choice.scope.brand, keys, letters


def _all_there(choice: ItemChoice, rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    missing = set(choice.keys) - {row["key"] for row in rows}
    missing |= {str(letter) for letter in set(choice.letters) - {row["letter"] for row in rows}}
    if missing:
        raise Misconfigured(
            f"job {choice.job.code!r} has no failed item {min(missing)!r} of that tenant and brand, or a run is about "
            f"to do it again; 'tidegate jobs items {choice.job.code}' shows which it has"
        )
    return rows


def _unless_quarantined(choice: ItemChoice, rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    left = [row for row in rows if choice.is_forced or not row["is_quarantined"]]
    if not left and rows and not choice.is_all:
        raise Conflict(f"job {choice.job.code!r}: of these items each is {QUARANTINED_WHY}; {FORCE_HELPS}")
    return left
