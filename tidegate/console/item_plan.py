"""The plan of a replay or a discard of items of a job by the clock: which, why they failed, and what may surprise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from dlq.runs import RunKind
from dlq.states import MOST_REPLAYS, UNRESOLVED, LetterState
from inbox.store import find_job
from tidegate.console.hazard_sentences import hazards_of_items
from tidegate.console.letters import LetterFilter, filter_arguments
from tidegate.console.replay_hazards import Found, Hazard, Sequences
from tidegate.console.replay_plan import MOST_LETTERS, digest_of, looked_at, parted, refuse_too_many, refuse_unknown
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.quarantine import ItemChoice, items_of_choice
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")

_TAKEN = frozenset({LetterState.REPLAYING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """What a decision would be about: how many items, of how many occasions, why they failed, and since when.

    The same items, unchanged, have the same `digest`.
    """

    job: str
    kind: RunKind
    is_forced: bool
    items: int
    occasions: int
    reasons: Mapping[str, int]
    first_failed_at: datetime | None
    digest: str
    hazards: Sequence[Hazard]


class Chosen(NamedTuple):
    """Items that somebody means, scope by scope; `left_out`: how many letters were asked for that no run may have now.

    Where that is so of all of them they are the choice: whoever decides about it is refused, and audited.
    """

    choices: Sequence[ItemChoice]
    left_out: Mapping[LetterState, int]


async def choose_items(
    connection: Connection, service: str, job: ClockJob, wanted: LetterFilter | Sequence[UUID], *, is_forced: bool
) -> Chosen:
    """Returns which items of the job some letters are; `wanted.jobs` is not asked. Nothing changes.

    Raises Misconfigured for letters that the job does not have, and for too many; Transient.
    """
    with translated_errors("read items"):
        async with connection.transaction(readonly=True):
            # As for the pages: a generic plan would keep every filter that is not set.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            rows = await _matching(connection, service, job, wanted)
    chosen, left_out = parted(rows, wanted, is_forced=is_forced)
    is_taken = not chosen and not isinstance(wanted, LetterFilter)
    meant = [row for row in left_out if row["state"] in UNRESOLVED] if is_taken else chosen
    by_scope: defaultdict[Scope, list[UUID]] = defaultdict(list)
    for row in meant:
        by_scope[Scope(row["tenant"], row["brand"])].append(row["id"])
    return Chosen(
        [ItemChoice(job=job, scope=scope, letters=ids, is_forced=is_forced) for scope, ids in by_scope.items()],
        Counter(LetterState(row["state"]) for row in left_out if row not in meant),
    )


async def plan_items(
    connection: Connection, service: str, chosen: Chosen, *, job: str, kind: RunKind, most_replays: int = MOST_REPLAYS
) -> ItemPlan:
    """Returns what a replay or discard would be about, as of one moment; nothing changes.

    The connection must not be in a transaction. Raises Misconfigured for an item that has not failed, Transient.
    """
    rows: list[asyncpg.Record] = []
    with translated_errors("read items"):
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for choice in chosen.choices:
                rows += await items_of_choice(connection, service, choice)
    is_forced = any(choice.is_forced for choice in chosen.choices)
    taken = _TAKEN if is_forced else _TAKEN | {LetterState.QUARANTINED}
    free = [row for row in rows if row["state"] not in taken]
    left_out = Counter(LetterState(row["state"]) for row in rows if row["state"] in taken)
    found = Found(
        job=job,
        kind=kind,
        order="",
        is_forced=is_forced,
        letters=len(free),
        most_replays=most_replays,
        sequences=Sequences(),
        facts=_facts(free, most_replays),
        states=left_out + Counter(chosen.left_out),
        runs=sorted({row["replay"] for row in rows if row["replay"] is not None}),
    )
    return ItemPlan(
        job=job,
        kind=kind,
        is_forced=is_forced,
        items=len(free),
        occasions=len({row["scheduled_at"] for row in free}),
        reasons=Counter(row["reason"] or row["error_class"] or "unknown" for row in free),
        first_failed_at=min((row["first_failed_at"] for row in free), default=None),
        digest=digest_of(free),
        hazards=hazards_of_items(found),
    )


async def _matching(
    connection: Connection, service: str, job: ClockJob, wanted: LetterFilter | Sequence[UUID]
) -> Sequence[asyncpg.Record]:
    number = await find_job(connection, service=service, code=job.job_code)
    if number is None:
        raise Misconfigured(f"job {job.code!r} never started here, so it has no dead letters")
    if isinstance(wanted, LetterFilter):
        arguments = (looked_at(wanted), *filter_arguments(wanted), MOST_LETTERS + 1)
        rows = await connection.fetch(_QUERIES["item_letters_to_decide"], number, *arguments)
        refuse_too_many(job.code, len(rows))
        return rows
    rows = await connection.fetch(_QUERIES["named_item_letters"], number, list(set(wanted)))
    refuse_unknown(job.code, wanted, rows)
    return rows


def _facts(rows: Sequence[asyncpg.Record], most_replays: int) -> Mapping[str, Any]:
    """Counts and samples, as `planned_facts` has them of records."""
    letters = [row for row in rows if row["letter"] is not None]
    replayed = [row["letter"] for row in letters if row["replays"] > 0]
    last = [row["letter"] for row in letters if row["replays"] + 1 >= most_replays]
    told = {"replayed": replayed, "last_try": last}
    counts = {name: len(found) for name, found in told.items()}
    return counts | {f"{name}_sample": str(min(found)) if found else None for name, found in told.items()}
