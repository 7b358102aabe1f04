"""Corrections: what somebody has decided about a record, by its place, so that every later read of the job goes by it.

Kafka's log stays as it is, and so does the letter: it keeps the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from uuid import UUID

import asyncpg

from dlq.letters import text_for_postgres
from dlq.states import LetterState
from tidegate_kernel.errors import AlreadyRunning, Misconfigured
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq")

LARGEST_VALUE = 16 * 1024 * 1024
"""Bytes of an edited value: sixteen times what a broker takes unless told otherwise. A consumer keeps the edited values
of its partitions in memory."""

EDITABLE = frozenset({LetterState.DEAD, LetterState.QUARANTINED})
"""States in which nothing has been decided about a letter, and nobody is at it."""


class CorrectionKind(StrEnum):
    """A closed set."""

    DISCARD = "discard"
    EDIT = "edit"


@dataclass(frozen=True, slots=True)
class Correction:
    """What a later read makes of a record: nothing, or what `value` says; its key and headers stay as they were."""

    kind: CorrectionKind
    value: bytes | None = None

    def __post_init__(self) -> None:
        if (self.kind is CorrectionKind.EDIT) != (self.value is not None):
            raise ValueError("an edit has a value, a discard has none")


NO_CORRECTIONS: Mapping[int, Correction] = MappingProxyType({})


async def keep_edit(connection: Connection, letter: UUID, value: bytes, *, reason: str, made_by: str) -> None:
    """In the caller's transaction: later reads decode the letter's record from `value`; an earlier edit is replaced.

    The letter, which keeps the original, is locked until the transaction ends. Raises Misconfigured for a letter that
    is not there or has been decided about, and for a value that is too large; AlreadyRunning while it is replayed.
    """
    if len(value) > LARGEST_VALUE:
        raise Misconfigured(f"the value has {len(value)} bytes; an edited one may have {LARGEST_VALUE}")
    state = await connection.fetchval(_QUERIES["lock_letter_state"], letter)
    refuse_unless_editable(letter, state)
    texts = text_for_postgres(reason), text_for_postgres(made_by)
    if await connection.fetchval(_QUERIES["keep_edit"], letter, value, *texts) is None:
        raise Misconfigured(f"the record of letter {letter} has been discarded; it is not edited any more")


def refuse_unless_editable(letter: UUID, state: str | None) -> None:
    """Raises what `keep_edit` does for a letter in `state`; None: there is none."""
    if state is None:
        raise Misconfigured(f"there is no dead letter {letter}; 'tidegate dlq list' shows which there are")
    if state == LetterState.REPLAYING:
        raise AlreadyRunning(f"letter {letter} is being replayed; edit it when that has ended, if it failed again")
    if state not in EDITABLE:
        raise Misconfigured(f"letter {letter} is {state}; only a letter that is dead or quarantined can be edited")


async def keep_discards(connection: Connection, letters: Sequence[UUID], *, reason: str, made_by: str) -> int:
    """In the caller's transaction: later reads pass the letters' records by; an edit of one is given up.

    Returns how many were not discarded before; those that were stay as they are. What becomes of the letters' states,
    and of what waits behind them, is the caller's to decide.
    """
    texts = text_for_postgres(reason), text_for_postgres(made_by)
    return len(await connection.fetch(_QUERIES["keep_discards"], list(letters), *texts))


async def corrections_from(
    connection: Connection, job: JobId, topic: str, topic_id: UUID, partition: int, offset: int
) -> Mapping[int, Correction]:
    """Returns what was decided about records of a partition from `offset` on, by offset; nearly always nothing.

    All generations of a job share their corrections: a rebuild reads what the live one has read before it.
    """
    rows = await connection.fetch(_QUERIES["corrections_from"], job, topic, topic_id, partition, offset)
    return {row["offset"]: _correction(row) for row in rows} or NO_CORRECTIONS


def _correction(row: asyncpg.Record) -> Correction:
    return Correction(CorrectionKind(row["kind"]), row["value"])
