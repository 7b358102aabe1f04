"""A migration while workers run: what the driver remembers of a table is wrong from one statement to the next."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from consumers.failure import RetryPolicy
from tests.integration.notes import Note, make_loop, noted, noted_ids, running, stands_at
from tidegate import Context, Rejected
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.postgres import Pool

# One failed attempt, of whichever kind, is the last: what counts as one shows as a dead letter.
_UNFORGIVING = RetryPolicy(attempts=1, unexpected_attempts=1)


async def test_a_column_added_meanwhile_costs_no_record(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """A rolling release migrates first, under the old code. Its statements become invalid in an open transaction, where
    the driver cannot prepare them anew: the batch is repeated, no attempt is counted, and the job does not end. A
    rejected neighbour makes it happen while records are tried one by one, where a failure is a record's own."""
    broker, topic, rounds = MemoryBroker(), unique_name("migrated"), 6
    broker.create_topic(topic, 1)
    await pool.execute("CREATE TABLE account (id int PRIMARY KEY)")
    await pool.execute("INSERT INTO account VALUES (1)")
    stale = 0

    async def note_account(command: Note, ctx: Context[None]) -> None:
        nonlocal stale
        if command.id.startswith("bad"):
            raise Rejected("no")
        try:
            account = await ctx.db.fetchrow("SELECT * FROM account WHERE id = $1", 1)
        except asyncpg.InvalidCachedStatementError:
            stale += 1
            raise
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, len(account or ()))

    loop = await make_loop(pool, database, broker, topic, handler=note_account, retry=_UNFORGIVING)
    async with running(loop):
        for round_ in range(rounds):
            broker.append(noted(topic, round_, id=f"bad{round_}"))
            broker.append(noted(topic, round_))
            await stands_at(pool, (round_ + 1) * 2)
            await pool.execute(f"ALTER TABLE account ADD COLUMN extra_{round_} int")

    assert stale > 0, "the driver was never told, so nothing was tested"
    assert await noted_ids(pool) == [f"e{n}" for n in range(rounds)]
    letters = await pool.fetch("SELECT reason, event_id FROM tidegate.dead_letter ORDER BY event_id")
    assert [tuple(letter) for letter in letters] == [("rejected", f"bad{n}") for n in range(rounds)]
    assert [row["n"] for row in await pool.fetch("SELECT n FROM effect ORDER BY id")] == list(range(1, rounds + 1))


async def test_a_type_changed_meanwhile_costs_no_record(
    pool: Pool, database: str, unique_name: Callable[[str], str]
) -> None:
    """A composite type that grows is noticed only when a row arrives; the driver then forgets it and cannot repeat."""
    broker, topic = MemoryBroker(), unique_name("retyped")
    broker.create_topic(topic, 1)
    await pool.execute("CREATE TYPE place AS (street text)")
    await pool.execute("CREATE TABLE home (id int, at place)")
    await pool.execute("INSERT INTO home VALUES (1, ROW('Elm'))")
    stale = 0

    async def note_home(command: Note, ctx: Context[None]) -> None:
        nonlocal stale
        try:
            home = await ctx.db.fetchval("SELECT at FROM home WHERE id = $1", 1)
        except asyncpg.OutdatedSchemaCacheError:
            stale += 1
            raise
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, len(home))

    loop = await make_loop(pool, database, broker, topic, handler=note_home, retry=_UNFORGIVING)
    async with running(loop):
        for round_ in range(4):
            broker.append(noted(topic, round_))
            await stands_at(pool, round_ + 1)
            await pool.execute(f"ALTER TYPE place ADD ATTRIBUTE more_{round_} text")

    assert stale > 0, "the driver was never told, so nothing was tested"
    assert [row["n"] for row in await pool.fetch("SELECT n FROM effect ORDER BY id")] == [1, 2, 3, 4]
    assert await pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0
