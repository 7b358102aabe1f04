"""Items that failed for good as dead letters: how they are told on the job's DLQ topic, and by which id."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid5

import asyncpg

from dlq.cause import Cause
from dlq.envelope import ItemNotice, item_record, outcome_record
from dlq.letters import text_for_postgres
from dlq.states import MOST_REPLAYS, LetterState
from tidegate.jobs.clockwork.items import Item
from tidegate.jobs.clockwork.runs import ClaimedRun
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Scope
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing

_QUERIES = load_queries(__package__)
# Ours alone; a change of it, or of `_letter_id`, would make every item that fails again a second letter.
_NAMESPACE = UUID("3d3a5c5e-6a52-4c61-9a0e-7469646567a2")
_MAX_STACK = 4096


@dataclass(frozen=True, slots=True)
class LetterHome:
    """Whose letters they are, and the topic that they are told on.

    `most_replays`: after so many in which it failed a letter is quarantined.
    """

    service: str
    job: str
    topic: str
    service_version: str = ""
    most_replays: int = MOST_REPLAYS

    def outcome(self, letter: UUID, key: str, state: LetterState, *, at: datetime) -> Outgoing:
        """What the topic is told of a letter that came to its end."""
        return outcome_record(
            letter=letter, key=key.encode(), job=self.job, state=state, decided_at=at, topic=self.topic
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """An item that was given up after `attempts`, and why."""

    item: Item
    reason: Reason
    cause: Cause
    attempts: int
    handler: str


def replay_instruction(job: str, scope: Scope, letter: UUID) -> str:
    """The command that has the item done again, to be pasted with a reason: it shows the plan."""
    words = ["tidegate", "jobs", "replay", job]
    words += [word for name, text in _named(scope) for word in (name, text)]
    return f"{shlex.join([*words, '--letter', str(letter)])} --reason '…'"


class GivenUp(NamedTuple):
    """What the topic of the letters is to be told, and which items are letters that were none before."""

    told: Sequence[Outgoing] = ()
    new: Sequence[Lost] = ()


async def give_up(
    connection: Connection, home: LetterHome, run: ClaimedRun, lost: Sequence[Lost], *, is_final: bool
) -> GivenUp:
    """In the transaction that took them: the items have failed; where `is_final` they are dead letters."""
    scope, by_key = run.scope, {each.item.identity: each for each in lost}
    letters = [_letter_id(home, scope, each.item) if is_final else None for each in lost]
    rows = await connection.fetch(
        _QUERIES["give_up_items"],
        run.job,
        scope.tenant,
        scope.brand,
        list(by_key),
        "quarantined" if is_final else "failed",
        run.scheduled_at,
        run.correlation_id,
        letters,
        *map(list, zip(*map(_columns, lost), strict=True)),
        home.most_replays,
    )
    if not is_final:
        return GivenUp()
    notices = [(by_key[row["key"]], _notice(home, run, by_key[row["key"]], row)) for row in rows]
    return GivenUp(
        [item_record(notice, key=each.item.key.encode(), topic=home.topic) for each, notice in notices],
        [by_key[row["key"]] for row in rows if row["occurrences"] == 1],
    )


def _columns(lost: Lost) -> tuple[object, ...]:
    item, cause = lost.item, lost.cause
    texts = (lost.handler, cause.error_class, cause.message)
    return (
        item.key,
        item.page_after,
        str(lost.reason),
        *map(text_for_postgres, texts),
        text_for_postgres(cause.stack, limit=_MAX_STACK),
        cause.fingerprint,
        lost.attempts,
    )


def _notice(home: LetterHome, run: ClaimedRun, lost: Lost, row: asyncpg.Record) -> ItemNotice:
    return ItemNotice(
        id=row["letter"],
        job=home.job,
        run=run.id,
        item=lost.item.identity,
        scheduled_at=run.scheduled_at,
        reason=lost.reason,
        error_class=lost.cause.error_class,
        error_message=lost.cause.message,
        stack=lost.cause.stack,
        fingerprint=lost.cause.fingerprint,
        attempts=lost.attempts,
        occurrences=row["occurrences"],
        first_failed_at=row["first_failed_at"],
        last_failed_at=row["decided_at"],
        correlation_id=str(run.correlation_id),
        tenant=run.scope.tenant,
        brand=run.scope.brand,
        handler=lost.handler,
        service_version=home.service_version,
        replay_count=row["replays"],
        instruction=replay_instruction(home.job, run.scope, row["letter"]),
    )


def _letter_id(home: LetterHome, scope: Scope, item: Item) -> UUID:
    """The same whenever this item of the job and scope fails, another for everything else."""
    parts = (home.service, home.job, scope.tenant, scope.brand, item.identity)
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    return uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts))


def _named(scope: Scope) -> Sequence[tuple[str, str]]:
    named = (("--tenant", scope.tenant), ("--brand", scope.brand))
    return [(name, text) for name, text in named if text]
