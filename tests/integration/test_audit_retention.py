"""The audit's own upkeep on real Postgres: old rows leave from its beginning, told, and the rest is still proved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.integration.audits import fill_audit
from tidegate_kernel.audit import permitted
from tidegate_kernel.audit_chain import AuditFilter, list_audit, verify_chain, verify_receipt
from tidegate_kernel.audit_upkeep import AuditUpkeep
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.permissions import Action, Actor, Deed, Role
from tidegate_kernel.postgres import Connection, Pool

pytestmark = pytest.mark.servers

YEAR = timedelta(days=365)
LONG_AGO = datetime.now(UTC) - timedelta(days=400)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database)
    yield opened
    await opened.close()


async def forget(pool: Pool, *, kept: timedelta | None = YEAR) -> list[int]:
    """One round; returns how many rows each of its chunks took away."""
    told: list[int] = []

    async def tell(removed: int) -> None:
        told.append(removed)

    await AuditUpkeep(pool, target="tests.tidegate.audit", kept=kept).round(tell)
    return told


async def act(pool: Pool) -> None:
    async with permitted(pool, Actor("anna", Role.OPERATOR), Deed(Action.CHECKPOINT_CREATE, "nightly")):
        pass


async def test_old_rows_leave_and_the_audit_tells_of_it(pool: Pool, connection: Connection) -> None:
    """The rest is whole and continues what was cut, and who asks after a row that has left is told so."""
    await fill_audit(connection, 1500, began=LONG_AGO)
    await act(pool)

    assert await forget(pool) == [1000, 500]

    chain = await verify_chain(connection)
    assert (list(chain.breaks), chain.rows, chain.cut.seq) == ([], 3, 1500)
    assert list(chain.notes) == ["rows 1 to 1500 have left by their retention, as row 1503 tells"]
    last, first = await list_audit(connection, AuditFilter(action="audit"))
    assert (last.actor, last.target, last.outcome) == ("job tests.tidegate.audit", "tests.tidegate.audit", "done")
    assert (first.parameters["rows"], last.parameters["rows"], last.parameters["up_to"]) == (1000, 500, 1500)
    assert "has left by its retention" in str(await verify_receipt(connection, 7, "ab12cd34"))
    await act(pool)
    assert list((await verify_chain(connection)).breaks) == []


async def test_what_is_younger_stays_and_so_does_the_last_row(pool: Pool, connection: Connection) -> None:
    """A database without any row could not say where its chain goes on; what nobody has asked to forget stays."""
    await fill_audit(connection, 5, began=LONG_AGO)

    assert await forget(pool, kept=timedelta(days=500)) == [0]
    assert await forget(pool, kept=None) == []
    assert await forget(pool) == [4]

    assert (await verify_chain(connection)).rows == 2


async def test_rows_that_tell_of_removals_are_no_reason_for_another(pool: Pool, connection: Connection) -> None:
    """A service at which nobody does anything would write one such row a day, for ever, about the one before."""
    await fill_audit(connection, 3, began=LONG_AGO, action="audit:forget")
    await act(pool)

    assert await forget(pool) == [0]


async def test_broken_chain_keeps_its_evidence(pool: Pool, connection: Connection) -> None:
    """Else whoever has edited a row would only have to wait."""
    await fill_audit(connection, 5, began=LONG_AGO)
    await act(pool)
    await connection.execute("ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only")
    await connection.execute("UPDATE tidegate.audit SET reason = 'other' WHERE seq = 3")

    with pytest.raises(Misconfigured, match="broken at row 3, so nothing of it is forgotten"):
        await forget(pool)

    assert await connection.fetchval("SELECT count(*) FROM tidegate.audit") == 6


async def test_cut_by_somebody_else_is_named(pool: Pool, connection: Connection) -> None:
    """Whoever owns the tables can cut the chain and note the cut; no row of the audit vouches for his."""
    await fill_audit(connection, 5, began=LONG_AGO)
    await act(pool)
    await connection.execute(
        """
        ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only;
        UPDATE tidegate.audit_head SET cut_seq = 3, cut_hash = (SELECT hash FROM tidegate.audit WHERE seq = 3);
        DELETE FROM tidegate.audit WHERE seq <= 3;
        """
    )

    (broken,) = (await verify_chain(connection)).breaks

    assert broken == "rows 1 to 3 are missing, and no row tells that their retention took them"


@pytest.mark.parametrize("kept", [timedelta(days=364), timedelta(0), timedelta(days=-1)])
async def test_database_refuses_less_than_a_year(pool: Pool, kept: timedelta) -> None:
    """Whoever takes a worker over must not take away what tells of it."""
    with pytest.raises(asyncpg.InvalidParameterValueError, match="kept for 365 days at least"):
        await forget(pool, kept=kept)
