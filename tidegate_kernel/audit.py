"""Everything done by hand passes here: checked, done and written down in one transaction.

Every function that changes state by hand takes an actor and works inside `permitted`; the command line, the console and
a script of one's own then go through the same check. The audit's own rules stand in migration 0002.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from types import TracebackType
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tidegate_kernel.errors import Denied, Misconfigured, Transient
from tidegate_kernel.permissions import MOST_REASON_CHARACTERS, Actor, Deed, Receipt, check
from tidegate_kernel.postgres import Connection, Pool, connected_anew, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# A filter that somebody typed fits many times over; what is longer is kept by its digest.
_MOST_PARAMETER_BYTES = 16 * 1024
_MOST_NAME_CHARACTERS = 500


class Outcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    DENIED = "denied"
    FAILED = "failed"


class UnattendedAction(StrEnum):
    """What nobody asks for when it is done, and the audit keeps all the same."""

    REMOVE = "maintenance:remove"


@dataclass(frozen=True, slots=True)
class UnattendedDeed:
    """What a job did by itself: what, on what, with which parameters (never payload or secrets), in which scope."""

    action: UnattendedAction
    target: str
    parameters: Mapping[str, Any]
    tenant: str | None = None
    brand: str | None = None


async def note_unattended(connection: Connection, deed: UnattendedDeed) -> Receipt:
    """In the transaction of the work, and as its last statement: the audit has a row of it if that commits.

    Raises Misconfigured for a database role that may not write the audit.
    """
    actor = Actor(f"job {deed.target}", origin=socket.gethostname())
    return await _write(connection, actor, _Entry(deed, "", Outcome.DONE))


@asynccontextmanager
async def permitted(database: Connection | Pool, actor: Actor, deed: Deed) -> AsyncIterator[Connection]:
    """The block runs in a transaction, if the actor may do the deed; the audit has a row of it either way.

    `done` commits together with what the block did. A refusal, also a Denied that the block raises, is kept as
    `denied`; any other error rolls back and is kept as `failed`. The block holds database work only: the connection is
    its transaction's. A bare connection must not be in a transaction already.

    Raises Denied, Misconfigured for a database role that may not write the audit, Transient.
    """
    attempt = _Attempt(database, actor, deed)
    async with attempt:
        with translated_errors(str(deed.action)):
            async with _connection(database) as connection, connection.transaction():
                await _require(connection, actor, deed)
                yield connection
                attempt.receipt = await _append(connection, actor, deed, Outcome.DONE)


async def refuse_early(database: Connection | Pool, actor: Actor, deed: Deed) -> None:
    """Nothing happens if the actor may do the deed; else it is refused and audited as by `permitted`.

    For work that takes long before it changes anything: `permitted` still has to stand where the change is made.
    """
    async with _Attempt(database, actor, deed):
        with translated_errors(str(deed.action)):
            async with _connection(database) as connection, connection.transaction():
                await _require(connection, actor, deed)


class _Attempt:
    """Around the transaction of a deed: sees to it that however it ends, the audit says so."""

    def __init__(self, database: Connection | Pool, actor: Actor, deed: Deed) -> None:
        self._database, self._actor, self._deed = database, actor, deed
        self.receipt: Receipt | None = None

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            if self.receipt is not None:
                self._actor.on_receipt(self.receipt)
            return False
        try:
            was_done = await self._keep(error)
        except (Transient, Misconfigured) as unkept:
            error.add_note(self._doubt(unkept))
            return False
        # Whoever was cancelled has to leave, though it was done.
        return was_done and isinstance(error, Transient)

    async def _keep(self, error: BaseException) -> bool:
        """The audit tells of the failure. True if there was none: only the answer to COMMIT was lost."""
        outcome = Outcome.DENIED if isinstance(error, Denied) else Outcome.FAILED
        was_done = False
        with translated_errors("audit"), suppress(_DoneAfterAll):
            async with _connection(self._database) as connection, connection.transaction():
                failure = await _append(connection, self._actor, self._deed, outcome, type(error).__name__)
                # Only now: a COMMIT under way holds the chain's end, and appending has waited for what becomes of it.
                was_done = await self._is_kept(connection)
                if was_done:
                    raise _DoneAfterAll  # takes the row of the failure back
                self.receipt = failure
        assert self.receipt is not None
        self._actor.on_receipt(self.receipt)
        return was_done

    async def _is_kept(self, connection: Connection) -> bool:
        """Whether the row that was appended before COMMIT was asked for is there."""
        return self.receipt is not None and bool(await connection.fetchval(_QUERIES["has_audit"], *self.receipt))

    def _doubt(self, unkept: BaseException) -> str:
        if self.receipt is None:
            return f"the audit has no row of this: {unkept}"
        return (
            "whether it was done is not known, the answer was lost: once Postgres answers, "
            f"'tidegate audit verify --receipt {self.receipt}' finds its row if it was"
        )


class _DoneAfterAll(Exception):
    """The failure that was to be kept was none."""


@asynccontextmanager
async def _connection(database: Connection | Pool) -> AsyncIterator[Connection]:
    if not isinstance(database, asyncpg.Connection | PoolConnectionProxy):
        async with database.acquire(timeout=10) as connection:
            yield connection
        return
    if database.is_closed():
        async with connected_anew(database) as connection:
            yield connection
        return
    if database.is_in_transaction():
        # The row of a refusal would be rolled back with it.
        raise RuntimeError("a deed needs a transaction of its own, and this connection is in one")
    yield database


async def _require(connection: Connection, actor: Actor, deed: Deed) -> None:
    """Raises Denied. The token is looked at again: it may have been revoked since the actor was made of it."""
    check(actor, deed)
    if actor.token is None:
        return
    state = await connection.fetchval(_QUERIES["token_state"], actor.token)
    if state != "valid":
        raise Denied(f"{deed} is refused: token {actor.name!r} is {state or 'gone'} by now")


async def _append(
    connection: Connection, actor: Actor, deed: Deed, outcome: Outcome, error_class: str | None = None
) -> Receipt:
    return await _write(connection, actor, _Entry(deed, deed.reason, outcome, error_class))


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a row of the audit tells beside who it was."""

    deed: Deed | UnattendedDeed
    reason: str
    outcome: Outcome
    error_class: str | None = None


async def _write(connection: Connection, actor: Actor, entry: _Entry) -> Receipt:
    deed = entry.deed
    try:
        row = await connection.fetchrow(
            _QUERIES["append_audit"],
            _storable(actor.name),
            actor.role,
            actor.token,
            *(_storable(text) for text in (actor.origin, str(deed.action), deed.target)),
            _storable(entry.reason, MOST_REASON_CHARACTERS),
            _parameters(deed.parameters),
            *(None if part is None else _storable(part) for part in (deed.tenant, deed.brand)),
            entry.outcome,
            entry.error_class,
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(
            "this database role may not write the audit, so nothing was done; connect as the schema's owner, or have "
            "it run 'tidegate migrate' with --worker-role and this role's name"
        ) from error
    assert row is not None
    return Receipt(row["seq"], row["hash"])


def _storable(text: str, most: int = _MOST_NAME_CHARACTERS) -> str:
    """`text` as Postgres can hold it: an argument may carry bytes that are no text, and a denied one any length."""
    return text[:most].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _parameters(given: Mapping[str, Any]) -> str:
    # Escaped to ASCII, so that any text passes.
    text = json.dumps(given, sort_keys=True, default=str)
    if len(text) <= _MOST_PARAMETER_BYTES:
        return text
    return json.dumps({"omitted_bytes": len(text), "sha256": sha256(text.encode()).hexdigest()})
