"""What folds have made of their events: read and written in the transaction that also claims the events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tidegate_kernel.event import JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)


class StoredState(NamedTuple):
    """The state of a key as JSON, None where there is none. `revision` 0: nothing was ever made of the key."""

    state: str | None
    revision: int
    tenant: str


class ChangedState(NamedTuple):
    """A state to be kept; None deletes it."""

    key: str
    state: str | None
    tenant: str


async def lock_states(connection: Connection, job: JobId, keys: Collection[str]) -> Mapping[str, StoredState]:
    """In the caller's transaction: returns the states of the (distinct) keys, which nobody else changes before its end.

    A key that another transaction works on is waited for.
    """
    wanted = list(keys)
    await connection.execute(_QUERIES["lock_states"], job, wanted)
    # A statement of its own: the snapshot of the one that waited for a lock is older than what it waited for.
    rows = await connection.fetch(_QUERIES["states"], job, wanted)
    return {row["key"]: StoredState(row["state"], row["revision"], row["tenant"]) for row in rows}


async def write_states(connection: Connection, job: JobId, changes: Sequence[ChangedState]) -> None:
    """In the transaction that has locked them: the states are kept under their next revisions, their keys are dirty."""
    keys, states, tenants = ([change[field] for change in changes] for field in range(3))
    await connection.execute(_QUERIES["write_states"], job, keys, states, tenants)


async def read_state(connection: Connection, job: JobId, key: str) -> StoredState | None:
    """Returns the committed state of a key, None where nothing was ever made of it."""
    row = await connection.fetchrow(_QUERIES["states"], job, [key])
    return None if row is None or not row["revision"] else StoredState(row["state"], row["revision"], row["tenant"])
