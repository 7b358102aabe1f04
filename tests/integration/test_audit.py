"""The audit on real Postgres: a row for each attempt, in its transaction, in a chain that shows every change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from asyncpg.transaction import Transaction

from tests.integration.audits import fill_audit
from tidegate_kernel.audit import permitted, refuse_early
from tidegate_kernel.audit_chain import AuditFilter, Chain, list_audit, verify_chain, verify_receipt
from tidegate_kernel.errors import Denied, Transient
from tidegate_kernel.permissions import Action, Actor, Deed, Receipt, Role
from tidegate_kernel.postgres import Connection, Pool

DEED = Deed(Action.CHECKPOINT_CREATE, "nightly", parameters={"offsets": {"orders:0": 3}})


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database)
    yield opened
    await opened.close()


class Receipts(list[Receipt]):
    """Keeps what an actor is told."""

    def actor(self, role: Role | None = Role.OPERATOR, name: str = "anna") -> Actor:
        return Actor(name, role, origin="tests", on_receipt=self.append)


async def _act(pool: Pool | Connection, actor: Actor, deed: Deed = DEED) -> None:
    async with permitted(pool, actor, deed) as connection:
        await connection.execute("INSERT INTO effect (id) VALUES ($1)", deed.target)


async def _outcomes(pool: Pool) -> list[tuple[Any, ...]]:
    rows = await pool.fetch("SELECT actor, action, target, outcome, error_class FROM tidegate.audit ORDER BY seq")
    return [tuple(row) for row in rows]


async def _effects(pool: Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM effect")
    return count


async def test_deed_and_its_row_are_one_transaction(pool: Pool) -> None:
    """A change without a row is a change by nobody; a row without the change is a lie."""
    receipts = Receipts()
    async with permitted(pool, receipts.actor(), DEED) as connection:
        await connection.execute("INSERT INTO effect (id) VALUES ('x')")
        assert (await _effects(pool), await _outcomes(pool)) == (0, []), "nothing shows before the end"

    assert await _effects(pool) == 1
    assert await _outcomes(pool) == [("anna", "checkpoint:create", "nightly", "done", None)]
    rows = await pool.fetch("SELECT seq, hash FROM tidegate.audit")
    assert receipts == [Receipt(*row) for row in rows]


async def test_refused_deed_changes_nothing_and_is_kept(pool: Pool) -> None:
    """G8: who tried what without the right to it is the first question after an incident."""
    receipts = Receipts()

    with pytest.raises(Denied, match="role viewer"):
        await _act(pool, receipts.actor(Role.VIEWER))

    assert await _effects(pool) == 0
    assert await _outcomes(pool) == [("anna", "checkpoint:create", "nightly", "denied", "Denied")]
    assert [receipt.seq for receipt in receipts] == [1]


async def test_failed_deed_is_rolled_back_and_kept_with_its_error(pool: Pool) -> None:
    """What was tried and did not work is told, with the class of the error and never its words."""

    async def act() -> None:
        async with permitted(pool, Receipts().actor(), DEED) as connection:
            await connection.execute("INSERT INTO effect (id) VALUES ('x')")
            raise ValueError("secret")

    with pytest.raises(ValueError, match="secret"):
        await act()

    assert await _effects(pool) == 0
    assert await _outcomes(pool) == [("anna", "checkpoint:create", "nightly", "failed", "ValueError")]
    assert "secret" not in str(await pool.fetch("SELECT a::text FROM tidegate.audit AS a"))


async def test_refusal_from_within_is_a_denial(pool: Pool) -> None:
    """Some rules need the data: what they refuse is refused, not failed."""
    with pytest.raises(Denied):
        async with permitted(pool, Receipts().actor(), DEED):
            raise Denied("not paused")

    assert [row[3] for row in await _outcomes(pool)] == ["denied"]


async def test_early_refusal_is_kept_and_early_consent_is_not(pool: Pool) -> None:
    """A question before long work is no deed; its refusal is one."""
    await refuse_early(pool, Receipts().actor(), DEED)
    assert await _outcomes(pool) == []

    with pytest.raises(Denied):
        await refuse_early(pool, Receipts().actor(None), DEED)
    assert [row[3] for row in await _outcomes(pool)] == ["denied"]


async def test_lost_answer_to_commit_is_no_failure(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deed was done; a second row that says 'failed' would make somebody do it again."""
    receipts, leave = Receipts(), Transaction.__aexit__
    lost: list[bool] = []

    async def lose_the_first(transaction: Any, *how: Any) -> None:
        await leave(transaction, *how)
        if not lost:
            lost.append(True)
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(Transaction, "__aexit__", lose_the_first)

    await _act(pool, receipts.actor())

    assert lost
    assert await _effects(pool) == 1
    assert [row[3] for row in await _outcomes(pool)] == ["done"]
    assert [receipt.seq for receipt in receipts] == [1]


async def test_deed_that_committed_before_it_was_cancelled_is_done(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the answer to COMMIT was on its way: a second row that says 'failed' would be a lie."""
    receipts, leave = Receipts(), Transaction.__aexit__
    lost: list[bool] = []

    async def cancel_the_first(transaction: Any, *how: Any) -> None:
        await leave(transaction, *how)
        if not lost:
            lost.append(True)
            raise asyncio.CancelledError

    monkeypatch.setattr(Transaction, "__aexit__", cancel_the_first)

    with pytest.raises(asyncio.CancelledError):
        await _act(pool, receipts.actor())

    assert await _effects(pool) == 1
    assert [row[3] for row in await _outcomes(pool)] == ["done"]
    assert [receipt.seq for receipt in receipts] == [1]


async def test_whoever_holds_the_end_of_the_chain_stops_nobody_for_ever(pool: Pool) -> None:
    """A process that froze in the middle of a deed: the next one is told, instead of waiting without a word."""
    limits = await pool.fetchval("SELECT proconfig FROM pg_proc WHERE proname = 'append_audit'")
    assert "lock_timeout=20s" in limits
    arguments = "(text, text, uuid, text, text, text, text, json, text, text, text, text)"
    await pool.execute(f"ALTER FUNCTION tidegate.append_audit{arguments} SET lock_timeout = '200ms'")
    async with pool.acquire() as frozen, frozen.transaction():
        await frozen.execute("SELECT FROM tidegate.audit_head FOR UPDATE")

        with pytest.raises(Transient, match="lock timeout") as raised:
            await asyncio.wait_for(_act(pool, Receipts().actor()), timeout=20)

    assert raised.value.__notes__[0].startswith("the audit has no row of this")
    assert await _effects(pool) == 0


async def test_lost_connection_within_is_a_failure(pool: Pool) -> None:
    """The other side of it: nothing was done, and the row says so from another connection."""
    with pytest.raises(Transient):
        async with permitted(pool, Receipts().actor(), DEED) as connection:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    assert [row[3:] for row in await _outcomes(pool)] == [("failed", "Transient")]


async def test_cancelled_deed_is_kept(pool: Pool) -> None:
    """Ctrl-C in the middle: rolled back, and told."""
    begun = asyncio.Event()

    async def act() -> None:
        async with permitted(pool, Receipts().actor(), DEED):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(act())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [row[3:] for row in await _outcomes(pool)] == [("failed", "CancelledError")]


async def test_connection_in_a_transaction_is_not_taken(pool: Pool) -> None:
    """The row of a refusal would go with the caller's rollback."""
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(RuntimeError, match="transaction of its own"):
            await _act(connection, Receipts().actor())


async def test_words_that_postgres_cannot_hold_are_kept_escaped(pool: Pool) -> None:
    """An attempt with odd bytes is still an attempt, also a refused one with a megabyte of reason."""
    odd = Deed(Action.JOB_PAUSE, "a\0b\udc80", "r" * 2_000_000, {"x": "\0\udc80"})

    with pytest.raises(Denied, match="longer than 1000"):
        await _act(pool, Receipts().actor(), odd)

    row = await pool.fetchrow("SELECT target, length(reason) AS length, parameters::text FROM tidegate.audit")
    assert row is not None
    assert tuple(row) == ("a\\0b\\udc80", 1000, '{"x": "\\u0000\\udc80"}')


async def test_large_parameters_are_kept_by_their_digest(pool: Pool) -> None:
    """A list of ten thousand offsets must not make every list of the audit unreadable."""
    await _act(pool, Receipts().actor(), Deed(Action.CHECKPOINT_CREATE, "x", parameters={"all": list(range(10_000))}))

    parameters = await pool.fetchval("SELECT parameters::text FROM tidegate.audit")
    assert "sha256" in parameters
    assert len(parameters) < 200


async def test_many_at_once_make_one_unbroken_chain(pool: Pool, connection: Connection) -> None:
    """Hashes over a moving end: two rows with one predecessor would look like an attack."""
    actors = [Receipts().actor(role) for role in (Role.OPERATOR, Role.VIEWER)] * 20

    await asyncio.gather(*(_act(pool, actor) for actor in actors), return_exceptions=True)

    chain = await verify_chain(connection)
    assert (chain.rows, list(chain.breaks), chain.end.seq) == (40, [], 40)


@pytest.mark.parametrize(
    "statement", ["UPDATE tidegate.audit SET actor = 'x'", "DELETE FROM tidegate.audit", "TRUNCATE tidegate.audit"]
)
@pytest.mark.parametrize("mode", ["origin", "replica"])
async def test_not_even_the_owner_changes_a_row_by_mistake(connection: Connection, statement: str, mode: str) -> None:
    """Whoever means it has to switch the trigger off first, and then the chain shows it."""
    await fill_audit(connection, 3)
    await connection.execute(f"SET session_replication_role = {mode}")

    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only ever appended to"):
        await connection.execute(statement)


@pytest.mark.parametrize(
    "change, told",
    [
        ("UPDATE tidegate.audit SET reason = 'other' WHERE seq = 5", "row 5 is not what was written"),
        ("UPDATE tidegate.audit SET actor = 'operator-' || 6 WHERE seq = 5", "row 5 is not what was written"),
        ("UPDATE tidegate.audit SET at = at + interval '1 us' WHERE seq = 5", "row 5 is not what was written"),
        ("UPDATE tidegate.audit SET tenant = '' WHERE seq = 6", "row 6 is not what was written"),
        ("UPDATE tidegate.audit SET database_user = 'x' WHERE seq = 5", "row 5 is not what was written"),
        ("UPDATE tidegate.audit SET hash = sha256('x') WHERE seq = 5", "row 5 is not what was written"),
        ("DELETE FROM tidegate.audit WHERE seq = 5", "row 5 is missing"),
        ("DELETE FROM tidegate.audit WHERE seq < 5", "rows 1 to 4 are missing"),
        ("DELETE FROM tidegate.audit WHERE seq > 7", "rows after 7 are missing: the chain had 10"),
        ("DELETE FROM tidegate.audit", "rows after 0 are missing: the chain had 10"),
        ("DELETE FROM tidegate.audit_head", "the chain's end and id are missing"),
        ("UPDATE tidegate.audit SET at = 'infinity' WHERE seq = 5", "row 5 is not what was written"),
        ("UPDATE tidegate.audit SET at = '294270-01-01' WHERE seq = 5", "row 5 is not what was written"),
        (
            "INSERT INTO tidegate.audit SELECT (tests_at(a, 0)).* FROM tidegate.audit AS a WHERE seq = 5",
            "row 0 was inserted",
        ),
        (
            "INSERT INTO tidegate.audit SELECT (tests_at(a, -3)).* FROM tidegate.audit AS a WHERE seq = 5",
            "row -3 was inserted",
        ),
        (
            (
                "UPDATE tidegate.audit AS a SET reason = b.reason, parameters = b.parameters FROM tidegate.audit AS b "
                "WHERE a.seq IN (5, 6) AND b.seq = 11 - a.seq"
            ),
            "row 5 is not what was written",
        ),
        (
            "UPDATE tidegate.audit AS a SET reason = 'other', hash = tests_hash(a, 'other') WHERE seq = 5",
            "row 6 does not continue row 5",
        ),
        (
            "UPDATE tidegate.audit AS a SET reason = 'other', hash = tests_hash(a, 'other') WHERE seq = 10",
            "row 10 is not the one that the chain ended with",
        ),
        (
            (
                "INSERT INTO tidegate.audit SELECT (r).* FROM (SELECT tests_next(a) AS r FROM tidegate.audit AS a "
                "WHERE seq = 10) AS n"
            ),
            "row 11 is not the one that the chain ended with",
        ),
    ],
)
async def test_first_changed_row_is_named(connection: Connection, change: str, told: str) -> None:
    """Also one made by somebody who knows how rows are hashed."""
    await fill_audit(connection, 10)
    await connection.execute(
        """
        CREATE FUNCTION public.tests_hash(a tidegate.audit, told text) RETURNS bytea LANGUAGE plpgsql AS $$
        BEGIN
            a.reason := told;
            RETURN sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8'));
        END $$;
        CREATE FUNCTION public.tests_at(a tidegate.audit, told bigint) RETURNS tidegate.audit LANGUAGE plpgsql AS $$
        BEGIN
            a.seq := told;
            RETURN a;
        END $$;
        CREATE FUNCTION public.tests_next(a tidegate.audit) RETURNS tidegate.audit LANGUAGE plpgsql AS $$
        BEGIN
            a.seq := a.seq + 1;
            a.previous_hash := a.hash;
            a.hash := sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8'));
            RETURN a;
        END $$;
        ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only;
        """
    )
    assert list((await verify_chain(connection)).breaks) == []

    await connection.execute(change)

    breaks = (await verify_chain(connection)).breaks
    assert [broken.startswith(told) for broken in breaks] == [True], breaks


async def test_chain_is_what_another_program_would_make(pool: Pool, connection: Connection) -> None:
    """The rows of `fill_audit` are hashed in Python: what `verify` accepts can be checked without this database."""
    await fill_audit(connection, 5)
    await _act(pool, Receipts().actor())

    chain = await verify_chain(connection)
    assert (list(chain.breaks), chain.rows) == ([], 6)


@pytest.mark.timeout(120)
async def test_hundred_thousand_rows_are_verified_within_five_seconds(connection: Connection) -> None:
    """A check that takes a coffee is one that nobody schedules."""
    await fill_audit(connection, 100_000)
    begun = time.perf_counter()

    chain = await verify_chain(connection)

    took = time.perf_counter() - begun
    assert (chain.rows, list(chain.breaks)) == (100_000, [])
    print(f"100,000 rows in {took:.2f} s")
    assert took < 5, f"{took:.1f} s"


async def test_change_of_the_database_shows_between_two_rows(connection: Connection) -> None:
    """Case of a move, a failover, a restore: rows of another system, timeline or database are told, not condemned."""
    await fill_audit(connection, 2)

    chain: Chain = await verify_chain(connection)

    assert list(chain.breaks) == []
    (note,) = chain.notes
    assert note.startswith("since row 2 the database became another: 7713631682594670630:00000001:16384 is now ")


async def test_receipt_proves_its_row_or_what_became_of_it(pool: Pool, connection: Connection) -> None:
    """What somebody kept from the terminal is an anchor too."""
    receipts = Receipts()
    await _act(pool, receipts.actor())
    digits = str(receipts[0]).partition(":")[2]

    assert await verify_receipt(connection, 1, digits) is None
    assert "another row took its number" in (await verify_receipt(connection, 1, "00000000") or "")
    assert "missing" in (await verify_receipt(connection, 2, digits) or "")
    await connection.execute("ALTER TABLE tidegate.audit DISABLE TRIGGER audit_is_append_only")
    await connection.execute("UPDATE tidegate.audit SET actor = 'somebody'")
    assert "edited" in (await verify_receipt(connection, 1, digits) or "")


async def test_list_filters(connection: Connection) -> None:
    """The newest first, and each filter takes away."""
    await fill_audit(connection, 50)

    found = await list_audit(connection, AuditFilter(actor="operator-7", action="job", limit=2))

    assert [(row.seq, row.actor, row.parameters) for row in found] == [
        (47, "operator-7", {"partition": 3}),
        (27, "operator-7", {"partition": 3}),
    ]
    assert await list_audit(connection, AuditFilter(outcome="denied")) == []
    assert await list_audit(connection, AuditFilter(action="jo")) == []
    assert len(await list_audit(connection, AuditFilter(since=found[1].at, target="shop.customer-ledger"))) == 24
