"""Least privilege on real Postgres: what each database role gets, and what a worker's role cannot do to the audit."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.integration.audits import fill_audit
from tidegate.migrations.grants import FUNCTIONS, HARMLESS_FUNCTIONS, TABLES, Duty, grant, lacking
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.permissions import Action, Actor, Deed, Role
from tidegate_kernel.postgres import Connection, connect

_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


@pytest.fixture
async def owner(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


@pytest.fixture
async def role(owner: Connection) -> AsyncIterator[str]:
    """A database role of this test's own, whose name needs quotes."""
    name = f"Tide {secrets.token_hex(4)}"
    await owner.execute(f"""CREATE ROLE "{name}" LOGIN PASSWORD 'tests'""")
    yield name
    await owner.execute("RESET SESSION AUTHORIZATION")
    await owner.execute(f"""DROP OWNED BY "{name}"; DROP ROLE "{name}" """)


async def _granted(owner: Connection, role: str, duty: Duty) -> None:
    async with owner.transaction():
        await grant(owner, {role: duty})


async def _as(owner: Connection, role: str) -> None:
    await owner.execute(f'SET SESSION AUTHORIZATION "{role}"')


async def _tables(owner: Connection) -> set[str]:
    rows = await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'tidegate'")
    return {row["tablename"] for row in rows}


async def test_every_table_and_function_has_its_grants_said(owner: Connection) -> None:
    """A migration that forgets them breaks the workers of whoever runs them with least privileges."""
    functions = await owner.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'tidegate'::regnamespace")

    assert set(TABLES) == await _tables(owner)
    assert {row["proname"] for row in functions} == FUNCTIONS | HARMLESS_FUNCTIONS


async def test_functions_that_change_something_are_for_nobody_else(owner: Connection) -> None:
    """What runs as the owner of the schema would otherwise be open to every role of the database."""
    open_to_all = await owner.fetch(
        "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'tidegate'::regnamespace "
        "AND has_function_privilege('public', p.oid, 'EXECUTE')"
    )

    assert {row["proname"] for row in open_to_all} & FUNCTIONS == set()


@pytest.mark.parametrize("duty", list(Duty))
async def test_role_has_exactly_what_its_duty_needs(owner: Connection, role: str, duty: Duty) -> None:
    """Also where it had more: privileges are taken away as they are given."""
    await owner.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA tidegate TO "{role}"')

    await _granted(owner, role, duty)

    for table in await _tables(owner):
        wanted = set(filter(None, TABLES[table].get(duty, "").split(", ")))
        held = {
            each
            for each in _PRIVILEGES
            if await owner.fetchval("SELECT has_table_privilege($1, $2, $3)", role, f"tidegate.{table}", each)
        }
        assert held == wanted, table
    assert await lacking(owner, {role: duty}) == []


async def test_function_that_a_role_may_not_call_is_missed(owner: Connection, role: str) -> None:
    """Without it every command of that role is refused: the check before a release has to say so."""
    await _granted(owner, role, Duty.COMMAND)
    await owner.execute(f'REVOKE EXECUTE ON FUNCTION tidegate.append_audit FROM "{role}"')

    assert await lacking(owner, {role: Duty.COMMAND}) == [f"role {role} (command)"]


def test_commands_may_all_that_workers_may() -> None:
    """A backfill is a command that works; a role with both duties keeps the larger."""
    for table, duties in TABLES.items():
        assert set(duties.get(Duty.WORKER, "").split(", ")) - {""} <= set(duties.get(Duty.COMMAND, "").split(", "))
        assert table


@pytest.mark.parametrize("duty", list(Duty))
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tidegate.audit SET actor = 'x'",
        "DELETE FROM tidegate.audit",
        "TRUNCATE tidegate.audit",
        "INSERT INTO tidegate.audit SELECT a.* FROM tidegate.audit AS a",
        "UPDATE tidegate.audit_head SET seq = 0",
        "DELETE FROM tidegate.audit_head",
        "ALTER TABLE tidegate.audit DISABLE TRIGGER ALL",
        "DROP TABLE tidegate.audit",
        "DELETE FROM tidegate.access_token",
    ],
)
async def test_role_cannot_touch_the_audit_but_through_its_function(
    owner: Connection, role: str, duty: Duty, statement: str
) -> None:
    """Append-only by privilege: whoever takes a worker over can add to the story, and not change it."""
    await fill_audit(owner, 3)
    await _granted(owner, role, duty)
    await _as(owner, role)

    with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"permission denied|must be owner"):
        await owner.execute(statement)

    async with permitted(owner, Actor("tests", Role.OPERATOR), Deed(Action.CHECKPOINT_CREATE, "x")):
        pass
    await owner.execute("RESET SESSION AUTHORIZATION")
    assert await owner.fetchval("SELECT database_user FROM tidegate.audit WHERE seq = 4") == role


async def test_worker_cannot_read_tokens(owner: Connection, role: str) -> None:
    """It needs none, and what it cannot read it cannot lose."""
    await _granted(owner, role, Duty.WORKER)
    await _as(owner, role)

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await owner.execute("SELECT FROM tidegate.access_token")


async def test_role_without_grants_is_told_what_to_do(owner: Connection, role: str) -> None:
    """And nothing is done: a deed whose row cannot be written must not happen."""
    await owner.execute(f'GRANT USAGE ON SCHEMA tidegate TO "{role}"')
    await _as(owner, role)

    with pytest.raises(Misconfigured, match="--worker-role"):
        async with permitted(owner, Actor("tests", Role.OPERATOR), Deed(Action.CHECKPOINT_CREATE, "x")):
            pass


async def test_missing_role_is_told_with_the_line_that_makes_it(owner: Connection) -> None:
    """The person at the keyboard may have the right to type it."""
    with pytest.raises(Misconfigured, match='CREATE ROLE "No Body" LOGIN'):
        await grant(owner, {"No Body": Duty.WORKER})


async def test_owner_of_the_schema_is_no_worker_role(owner: Connection) -> None:
    """Granting it something would look like keeping something from it."""
    name = await owner.fetchval("SELECT current_user")

    with pytest.raises(Misconfigured, match="nothing can be kept from it"):
        await grant(owner, {name: Duty.WORKER})
