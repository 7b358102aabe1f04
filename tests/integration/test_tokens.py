"""Tokens on real Postgres: made within what their maker has, the first one once, the last one not by mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Denied, Misconfigured
from tidegate_kernel.permissions import Action, Actor, Deed, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.token_deeds import Grant, bootstrap_token, create_token, revoke_token
from tidegate_kernel.tokens import NOBODY, TokenState, bearer, list_tokens

SOMEBODY = Actor(NOBODY, origin="tests")
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def _bearer(pool: Pool, text: str) -> Actor:
    return await bearer(pool, text, origin="tests")


async def _made(pool: Pool, actor: Actor, name: str, role: Role = Role.OPERATOR, **more: Any) -> Actor:
    return await _bearer(pool, await create_token(pool, actor, Grant(name, role, **more)))


async def _admin(pool: Pool) -> Actor:
    return await _bearer(pool, await bootstrap_token(pool, SOMEBODY, "root"))


async def _audited(pool: Pool) -> list[tuple[Any, ...]]:
    rows = await pool.fetch("SELECT actor, action, target, outcome FROM tidegate.audit ORDER BY seq")
    return [tuple(row) for row in rows]


async def test_text_of_a_token_is_nowhere_in_the_database(pool: Pool) -> None:
    """A dump of the database, or a look at it, must open nothing."""
    text = await bootstrap_token(pool, SOMEBODY, "root")

    assert text.startswith("tg_")
    assert len(text) > 40
    tables = ("access_token", "audit", "audit_head", "outbox")
    everything = [str(await pool.fetch(f"SELECT t::text FROM tidegate.{table} AS t")) for table in tables]
    values = await pool.fetch("SELECT convert_from(value, 'UTF8') FROM tidegate.outbox")
    assert text[3:] not in "".join([*everything, *map(str, values)])
    assert (await _bearer(pool, text)).role is Role.ADMIN


async def test_first_token_is_made_once_by_whoever_is_first(pool: Pool) -> None:
    """Two bootstraps at once would leave an admin token that nobody knows of."""
    async with pool.acquire() as holder, holder.transaction():
        # The end of the audit is held, so that none commits before all have come as far as they can.
        await holder.execute("SELECT FROM tidegate.audit_head FOR UPDATE")
        tries = [asyncio.create_task(bootstrap_token(pool, SOMEBODY, f"root-{n}")) for n in range(8)]
        async with asyncio.timeout(30):
            while await pool.fetchval(_WAITING) < len(tries):
                await asyncio.sleep(0.01)
    ends = await asyncio.gather(*tries, return_exceptions=True)

    assert [isinstance(end, str) for end in ends].count(True) == 1
    assert all(isinstance(end, str | Denied) for end in ends)
    assert sorted(row[3] for row in await _audited(pool)) == ["denied"] * 7 + ["done"]


async def test_bootstrap_is_over_for_good(pool: Pool) -> None:
    """Revoking all tokens must not open the door that needs none."""
    admin = await _admin(pool)
    await revoke_token(pool, admin, "root", reason="tests", even_the_last=True)

    with pytest.raises(Denied, match=r"docs/access\.md"):
        await bootstrap_token(pool, SOMEBODY, "again")


@pytest.mark.parametrize(
    "grant",
    [
        Grant("x", Role.VIEWER),
        Grant("x", Role.VIEWER, tenants=frozenset({"zeta"})),
        Grant("x", Role.VIEWER, tenants=frozenset({"acme", "zeta"})),
        Grant("x", Role.VIEWER, tenants=frozenset({"acme"}), brands=frozenset({"b"})),
        Grant("x", Role.VIEWER, brands=frozenset({"a"})),
    ],
)
async def test_nobody_grants_more_than_he_has(pool: Pool, grant: Grant) -> None:
    """Else a token for one tenant is a token for all of them, in two steps."""
    scope = {"tenants": frozenset({"acme"}), "brands": frozenset({"a"})}
    limited = await _made(pool, await _admin(pool), "limited", Role.ADMIN, **scope)

    with pytest.raises(Denied, match="cannot grant"):
        await create_token(pool, limited, grant)

    assert (await _made(pool, limited, "within", Role.OPERATOR, **scope)).tenants == frozenset({"acme"})
    assert [row[3] for row in await _audited(pool)] == ["done", "done", "denied", "done"]


async def test_limited_admin_revokes_within_its_scope_alone(pool: Pool) -> None:
    """A tenant's admin must not lock the platform out."""
    admin = await _admin(pool)
    acme = frozenset({"acme"})
    limited = await _made(pool, admin, "limited", Role.ADMIN, tenants=acme)
    await _made(pool, admin, "everywhere")
    await _made(pool, limited, "here", tenants=acme)

    with pytest.raises(Denied, match="is for everything"):
        await revoke_token(pool, limited, "everywhere", reason="tests")
    assert (await revoke_token(pool, limited, "here", reason="tests")).name == "here"


async def test_last_admin_is_not_revoked_by_mistake(pool: Pool) -> None:
    """Nobody could make a token afterwards; a limited admin does not count, nor an expired one."""
    admin = await _admin(pool)
    await _made(pool, admin, "limited", Role.ADMIN, tenants=frozenset({"acme"}))
    await _made(pool, admin, "expired", Role.ADMIN, lifetime=timedelta(seconds=1))
    await pool.execute("UPDATE tidegate.access_token SET expires_at = now() WHERE name = 'expired'")

    with pytest.raises(Denied, match="last valid admin token"):
        await revoke_token(pool, admin, "root", reason="tests")

    await _made(pool, admin, "second", Role.ADMIN)
    await revoke_token(pool, admin, "root", reason="tests")
    assert (await _bearer(pool, "tg_nothing")).role is None


async def test_two_admins_who_revoke_each_other_leave_one(pool: Pool) -> None:
    """Each sees another admin standing, unless they wait for one another."""
    first = await _admin(pool)
    second = await _made(pool, first, "second", Role.ADMIN)

    ends: Sequence[object] = await asyncio.gather(
        revoke_token(pool, first, "second", reason="tests"),
        revoke_token(pool, second, "root", reason="tests"),
        return_exceptions=True,
    )

    assert [isinstance(end, Denied) for end in ends].count(True) == 1
    assert [token.state for token in await list_tokens(pool)].count(TokenState.VALID) == 1


async def test_revoked_meanwhile_is_refused_at_the_deed(pool: Pool) -> None:
    """A console or a long command holds its actor for hours; the token is what counts when it acts."""
    admin = await _admin(pool)
    operator = await _made(pool, admin, "olga")
    await revoke_token(pool, admin, "olga", reason="left the team")

    with pytest.raises(Denied, match="'olga' is revoked by now"):
        async with permitted(pool, operator, Deed(Action.CHECKPOINT_CREATE, "nightly")):
            pass


@pytest.mark.parametrize(
    "change, problem",
    [("expires_at = now()", "token 'olga' is expired"), ("revoked_at = now()", "token 'olga' is revoked")],
)
async def test_dead_token_says_what_it_died_of(pool: Pool, change: str, problem: str) -> None:
    """The person with it should ask for a new one, not for another network."""
    text = await create_token(pool, await _admin(pool), Grant("olga", Role.OPERATOR))
    await pool.execute(f"UPDATE tidegate.access_token SET {change} WHERE name = 'olga'")

    actor = await _bearer(pool, text)

    assert (actor.name, actor.role, actor.problem) == ("olga", None, problem)
    assert actor.token is not None, "the audit tells which one"


async def test_name_is_taken_until_it_is_revoked(pool: Pool) -> None:
    """The audit tells people by the names of their tokens: two of one name would be one person."""
    admin = await _admin(pool)
    await _made(pool, admin, "olga")
    with pytest.raises(Misconfigured, match="already"):
        await _made(pool, admin, "olga")

    await revoke_token(pool, admin, "olga", reason="lost")
    await _made(pool, admin, "olga")

    assert [token.name for token in await list_tokens(pool)] == ["olga", "olga", "root"]


@pytest.mark.parametrize("lifetime", [timedelta(weeks=999_999), timedelta(0), timedelta(days=-1)])
async def test_lifetime_that_no_calendar_holds_is_refused(pool: Pool, lifetime: timedelta) -> None:
    """Its row could not be read again: no list of tokens, and for an admin's no revocation of any token."""
    admin = await _admin(pool)

    with pytest.raises(Misconfigured, match="up to 100 years"):
        await create_token(pool, admin, Grant("olga", Role.ADMIN, lifetime=lifetime))

    assert [token.name for token in await list_tokens(pool)] == ["root"]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101])
async def test_name_that_nobody_could_read_is_refused(pool: Pool, name: str) -> None:
    """It stands in tables, in logs and in other people's terminals."""
    with pytest.raises(Misconfigured, match="printable"):
        await _made(pool, await _admin(pool), name)
