"""Erasure of items that failed: their letters have no payload, but error texts and keys may be somebody's.

Of the key a digest stays, as a claim stays of an event: a run that meets the item again passes it by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import asyncpg

from dlq.letters import Origin
from dlq.outcomes import Decided
from dlq.states import LetterState
from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class HeldItem(NamedTuple):
    """An item of a job: whose, and by what it is done once."""

    tenant: str
    brand: str
    key: str


class ErasedItems(NamedTuple):
    """How many items were erased, and how those have ended that were letters."""

    items: int
    letters: Sequence[Decided]


async def items_of_key(connection: Connection, job: JobId, key: bytes) -> Sequence[HeldItem]:
    """Returns items that failed or were letters, by what they are done once or by their place in the job's query."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return []  # a key of an item is text
    return [HeldItem(*row) for row in await connection.fetch(_QUERIES["items_of_key"], job, text)]


async def items_of_letter(connection: Connection, job: JobId, letter: UUID) -> Sequence[HeldItem]:
    """Returns the item that the letter is of; none if it is a record's or another job's."""
    return [HeldItem(*row) for row in await connection.fetch(_QUERIES["items_of_letter"], job, letter)]


async def letters_of_items(connection: Connection, job: JobId, items: Sequence[HeldItem]) -> Sequence[UUID]:
    """Returns the letters that some of the items are."""
    rows = await connection.fetch(_QUERIES["letters_of_items"], job, *_columns(items))
    return [row["letter"] for row in rows]


async def erase_items(
    connection: Connection, origin: Origin, items: Sequence[HeldItem], *, made_by: str
) -> ErasedItems:
    """In the caller's transaction: of `items` nothing is left that may be somebody's, and no run does them any more."""
    rows = await connection.fetch(_QUERIES["lock_items_to_erase"], origin.job, *_columns(items))
    there = _columns([HeldItem(row["tenant"], row["brand"], row["key"]) for row in rows])
    await connection.execute(_QUERIES["drop_erased_items"], origin.job, *there)
    await connection.execute(_QUERIES["forget_page_places"], origin.job, *there)
    erased = await connection.fetch(_QUERIES["erase_items"], origin.job, *there, made_by)
    return ErasedItems(len(erased), [_decided(row) for row in erased if row["letter"] is not None])


def _decided(row: asyncpg.Record) -> Decided:
    state = LetterState.RESOLVED if row["outcome"] == "done" else LetterState.DISCARDED
    return Decided(row["letter"], None, state, row["decided_at"], row["last_failed_at"])


def _columns(items: Sequence[HeldItem]) -> tuple[list[str], list[str], list[str]]:
    return [each.tenant for each in items], [each.brand for each in items], [each.key for each in items]
