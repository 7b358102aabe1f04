"""Access tokens are made and revoked here, by permission; see `tokens` for what they are."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.permissions import Action, Actor, Deed, Role, scope_text
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries
from tidegate_kernel.tokens import Token, token_digest, token_of_row

_QUERIES = load_queries(__package__)
_PREFIX = "tg_"
_BYTES = 32
_BOOTSTRAP_LOCK = 0x7469_6465_746F_6B65  # "tidetoke"
_MOST_NAME_CHARACTERS = 100
# One that expires when Python's calendar has ended could not be read again, and neither could any list with it.
_LONGEST = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a new token is to be good for."""

    name: str
    role: Role
    tenants: frozenset[str] | None = None
    brands: frozenset[str] | None = None
    lifetime: timedelta | None = None


async def create_token(database: Connection | Pool, actor: Actor, grant: Grant) -> str:
    """The token exists; returns its text, which is stored nowhere.

    Raises Denied, also for more than the actor has, Misconfigured for a bad or taken name, Transient.
    """
    text = _new_text()
    async with permitted(database, actor, _creation(grant)) as connection:
        _refuse_more(actor, grant)
        await _insert(connection, _QUERIES["create_token"], grant, text, actor.name)
    return text


async def bootstrap_token(database: Connection | Pool, origin: Actor, name: str) -> str:
    """The first token of a database exists, an unlimited admin; returns its text. `origin` says where from.

    Raises Denied if there is, or ever was, another: of several at once one succeeds. Misconfigured, Transient.
    """
    text, grant = _new_text(), Grant(name, Role.ADMIN)
    actor = Actor("bootstrap", Role.ADMIN, origin=origin.origin, on_receipt=origin.on_receipt)
    async with permitted(database, actor, _creation(grant)) as connection:
        await connection.execute(_QUERIES["take_bootstrap_turn"], _BOOTSTRAP_LOCK)
        if not await _insert(connection, _QUERIES["create_first_token"], grant, text, actor.name):
            raise Denied(
                "this database has had tokens already, so --bootstrap is over: ask a bearer of an admin token to make "
                "one. If every admin token is lost, see 'When the last admin token is lost' in docs/access.md"
            )
    return text


async def revoke_token(
    database: Connection | Pool, actor: Actor, name: str, *, reason: str, even_the_last: bool = False
) -> Token:
    """The standing token called `name` (or with this id) opens nothing any more; returns it.

    Raises Denied, also for the last unlimited admin token unless `even_the_last`, Misconfigured for one that is not
    there, Transient.
    """
    async with permitted(database, actor, Deed(Action.TOKEN_REVOKE, name, reason)) as connection:
        # In the order of their ids, so that two who revoke each other's wait for one another and one is refused.
        admins = [token_of_row(row) for row in await connection.fetch(_QUERIES["lock_admin_tokens"])]
        token = await _standing(connection, name)
        _refuse_beyond_scope(actor, token)
        if not even_the_last and [each.id for each in admins] == [token.id]:
            raise Denied(
                f"token {token.name!r} is the last valid admin token for everything; make another first, or add --force"
            )
        await connection.execute(_QUERIES["revoke_token"], token.id, actor.name)
    return token


def _new_text() -> str:
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def _creation(grant: Grant) -> Deed:
    return Deed(
        Action.TOKEN_CREATE,
        grant.name,
        parameters={
            "role": grant.role,
            "tenants": _sorted(grant.tenants),
            "brands": _sorted(grant.brands),
            "lifetime_seconds": None if grant.lifetime is None else grant.lifetime.total_seconds(),
        },
    )


async def _insert(connection: Connection, query: str, grant: Grant, text: str, creator: str) -> bool:
    if not (grant.name.isprintable() and 0 < len(grant.name.strip()) <= _MOST_NAME_CHARACTERS):
        raise Misconfigured(
            f"a token's name is 1 to {_MOST_NAME_CHARACTERS} printable characters; {grant.name!r} is not"
        )
    if grant.lifetime is not None and not timedelta(0) < grant.lifetime <= _LONGEST:
        raise Misconfigured("a token lasts up to 100 years; without an end it lasts until it is revoked")
    scope = (_sorted(grant.tenants), _sorted(grant.brands))
    try:
        made = await connection.fetchval(
            query, grant.name, grant.role, *scope, token_digest(text), creator, grant.lifetime
        )
    except asyncpg.UniqueViolationError as error:
        raise Misconfigured(
            f"there is a token {grant.name!r} already; choose another name, or revoke that one first"
        ) from error
    return made is not None


async def _standing(connection: Connection, name: str) -> Token:
    row = await connection.fetchrow(_QUERIES["standing_token"], name)
    if row is None:
        raise Misconfigured(f"there is no token {name!r} to revoke; 'tidegate tokens list' shows what there is")
    return token_of_row(row)


def _refuse_more(actor: Actor, grant: Grant) -> None:
    """Raises Denied if the grant is for more than the actor has."""
    if actor.role is None or not actor.role.includes(grant.role):
        raise Denied(f"token {actor.name!r} has role {actor.role} and cannot grant {grant.role}")
    if not (_is_within(grant.tenants, actor.tenants) and _is_within(grant.brands, actor.brands)):
        raise Denied(
            f"token {actor.name!r} is limited to {scope_text(actor.tenants, actor.brands)} and cannot grant "
            f"{scope_text(grant.tenants, grant.brands)}; say --tenant or --brand"
        )


def _refuse_beyond_scope(actor: Actor, token: Token) -> None:
    if not (_is_within(token.tenants, actor.tenants) and _is_within(token.brands, actor.brands)):
        raise Denied(
            f"token {actor.name!r} is limited to {scope_text(actor.tenants, actor.brands)}, and token {token.name!r} "
            f"is for {scope_text(token.tenants, token.brands)}"
        )


def _is_within(part: frozenset[str] | None, whole: frozenset[str] | None) -> bool:
    return whole is None or (part is not None and part <= whole)


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)
