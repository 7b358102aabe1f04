"""Who is suspected of having ended because of a record: cautious mode costs a thousandfold, so it must be earned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from consumers.positions import Position, Positions
from inbox.store import register_job
from tidegate_kernel.event import LIVE, JobCode, JobId, TopicPartition
from tidegate_kernel.postgres import Pool, open_pool

_PLACE = TopicPartition("orders", 0)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with open_pool(database, size=2) as opened:
        yield opened


@pytest.fixture
async def job(pool: Pool) -> JobId:
    async with pool.acquire() as connection:
        return await register_job(connection, service="chaos", code=JobCode("ledger"), claim_rule="v1")


async def test_a_process_that_takes_its_own_partition_again_has_not_died(pool: Pool, job: JobId) -> None:
    """After Postgres was away, or a rebalance, living owners take over again without having moved: nobody died."""
    positions = Positions(pool, job=job, run=LIVE, owner="host:1")
    await positions.begin({_PLACE: Position(0, 40, UUID(int=7))})
    await positions.take_over(_PLACE)
    await positions.take_over(_PLACE)

    again = await positions.take_over(_PLACE)

    assert again is not None
    assert not again.is_suspect


async def test_a_pod_that_is_started_again_under_the_same_name_is_another_owner(pool: Pool, job: JobId) -> None:
    """In a container every process is pid 1 of the same host: its name says nothing of the one that died."""
    first = Positions(pool, job=job, run=LIVE, owner="pod-0:1")
    await first.begin({_PLACE: Position(0, 40, UUID(int=7))})
    await first.take_over(_PLACE)
    await Positions(pool, job=job, run=LIVE, owner="pod-0:1").take_over(_PLACE)

    again = await Positions(pool, job=job, run=LIVE, owner="pod-0:1").take_over(_PLACE)

    assert again is not None
    assert again.is_suspect
