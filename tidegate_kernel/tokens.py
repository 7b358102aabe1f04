"""Access tokens, and the actor that bears one.

The text of a token is `tg_` and 32 random bytes. It is told once, to whoever made it, and kept as a digest: one without
salt is enough for what nobody can guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

NOBODY = "nobody"
"""Name of an actor without a token that we know."""


class TokenState(StrEnum):
    """Whether a token still opens anything."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Token(NamedTuple):
    """A token without its text. `tenants` and `brands` None: all of them; `expires_at` None: never."""

    id: UUID
    name: str
    role: Role
    tenants: frozenset[str] | None
    brands: frozenset[str] | None
    state: TokenState
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


async def bearer(database: Connection | Pool, text: str, *, origin: str) -> Actor:
    """Returns who bears the token `text`. One that opens nothing gives an actor without a role, which says why.

    Raises Transient.
    """
    if not text:
        return Actor(NOBODY, origin=origin, problem="there is no token")
    with translated_errors("look up the token"):
        row = await database.fetchrow(_QUERIES["token_by_digest"], token_digest(text))
    if row is None:
        return Actor(NOBODY, origin=origin, problem="the token given is not one of this database")
    token = token_of_row(row)
    if token.state is not TokenState.VALID:
        return Actor(token.name, origin=origin, token=token.id, problem=f"token {token.name!r} is {token.state}")
    return Actor(token.name, token.role, token.tenants, token.brands, origin=origin, token=token.id)


async def list_tokens(database: Connection | Pool) -> Sequence[Token]:
    """Returns all tokens ever made, newest first. Raises Transient."""
    with translated_errors("list tokens"):
        return [token_of_row(row) for row in await database.fetch(_QUERIES["list_tokens"])]


def token_digest(text: str) -> bytes:
    """What is stored of a token's text."""
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


def token_of_row(row: asyncpg.Record) -> Token:
    """A row of the queries that name a token's columns."""
    return Token(
        row["id"],
        row["name"],
        Role(row["role"]),
        None if row["tenants"] is None else frozenset(row["tenants"]),
        None if row["brands"] is None else frozenset(row["brands"]),
        TokenState(row["state"]),
        row["created_at"],
        row["created_by"],
        row["expires_at"],
        row["revoked_at"],
        row["revoked_by"],
    )
