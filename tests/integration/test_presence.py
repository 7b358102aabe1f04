"""What owners say of their partitions: who may say it, when it is renewed, what is left when they go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from consumers.presence import Presence, State, Told
from inbox.store import register_job
from tests.integration.pausing import P0, P1, Bench, running, until
from tidegate_kernel.event import JobCode, JobId, TopicPartition
from tidegate_kernel.postgres import Pool


@pytest.fixture
async def job(pool: Pool) -> JobId:
    async with pool.acquire() as connection:
        return await register_job(connection, service="notes", code=JobCode("notes"), claim_rule="v1")


@pytest.fixture
def bench(pool: Pool, database: str) -> Bench:
    return Bench(pool, database)


def told(state: State, epoch: int | None, *, detail: str = "", age: float = 0.0) -> Told:
    return Told(state, detail, 100.0 - age, epoch)


async def tell(pool: Pool, job: JobId, owner: str, said: Mapping[TopicPartition, Told]) -> None:
    await Presence(pool, job=job, owner=owner).tell(said, 100.0)


async def row(pool: Pool, partition: TopicPartition = P0) -> asyncpg.Record:
    found = await pool.fetchrow(
        "SELECT owner, epoch, state, detail, extract(epoch FROM seen_at - since)::float8 AS age "
        "FROM tidegate.presence WHERE topic = $1 AND partition = $2",
        *partition,
    )
    assert found is not None
    return found


async def test_a_stale_owner_is_not_heard(pool: Pool, job: JobId) -> None:
    """A zombie that wakes up must not tell an operator that the partition moves, or that nobody owns it."""
    await tell(pool, job, "new", {P0: told(State.BLOCKED, 7, detail="gap", age=12)})
    await tell(pool, job, "zombie", {P0: told(State.MOVING, 6)})
    await tell(pool, job, "zombie", {P0: told(State.RELEASED, 6)})

    found = await row(pool)
    assert (found["owner"], found["epoch"], found["state"], found["detail"]) == ("new", 7, "blocked", "gap")
    assert found["age"] == pytest.approx(12)


async def test_who_only_takes_over_does_not_speak_for_a_living_owner(pool: Pool, job: JobId) -> None:
    """Between assignment and takeover the old owner may still work; once it has let go, or is silent, we are heard."""
    await tell(pool, job, "old", {P0: told(State.MOVING, 3), P1: told(State.RELEASED, 3)})
    await pool.execute(
        "INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id) "
        "SELECT $1, 'notes', p, 0, 3, gen_random_uuid() FROM generate_series(0, 1) AS p",
        job,
    )

    await tell(pool, job, "new", {p: told(State.TAKING_OVER, None, detail="away") for p in (P0, P1)})
    assert (await row(pool, P0))["owner"] == "old"
    assert (await row(pool, P1))["state"] == "taking_over"

    await pool.execute("UPDATE tidegate.presence SET seen_at = now() - interval '1 minute' WHERE partition = 0")
    await tell(pool, job, "new", {P0: told(State.TAKING_OVER, None)})
    assert (await row(pool, P0))["state"] == "taking_over"
    await tell(pool, job, "new", {P0: told(State.MOVING, 4)})
    assert (await row(pool, P0))["state"] == "moving"


async def test_a_stopped_worker_has_released_its_partitions(bench: Bench) -> None:
    """An orderly stop and a crash look different to whoever asks why nothing moves."""
    async with running(await bench.loop(owner="one")):
        await bench.says("caught_up", P0)
        await bench.says("caught_up", P1)

    assert await bench.state(P0) == "released"
    assert await bench.state(P1) == "released"


async def test_a_partition_that_moves_to_another_worker_is_told_by_that_one(bench: Bench) -> None:
    """After a rebalance the row is the new owner's, whichever of the two wrote last."""
    async with running(await bench.loop(owner="one")):
        await bench.says("caught_up", P1)
        async with running(await bench.loop(owner="two")):

            async def shared() -> bool:
                rows = await bench.pool.fetch("SELECT DISTINCT owner, state FROM tidegate.presence")
                return {tuple(each) for each in rows} == {("one", "caught_up"), ("two", "caught_up")}

            await until(shared)


async def test_presence_is_renewed_while_nothing_changes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle partition is not an abandoned one."""
    monkeypatch.setattr("consumers.watch._HEARTBEAT_SECONDS", 1.0)

    async def seen_at() -> Any:
        return await bench.pool.fetchval("SELECT min(seen_at) FROM tidegate.presence WHERE state = 'caught_up'")

    async with running(await bench.loop()):
        await bench.says("caught_up", P0)
        first = await seen_at()

        async def is_renewed() -> bool:
            return bool(await seen_at() > first)

        await until(is_renewed)
