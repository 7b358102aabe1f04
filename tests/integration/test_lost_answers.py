"""Answers of a real Postgres that never arrive, and rows that say something else than what their owner believes.

Each row of the two tables in ARCHITECTURE.md, "When an answer is lost", that needs a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from consumers.loop import ConsumerLoop
from tests.chaos.process import free_ports
from tests.chaos.proxy import Proxy
from tests.integration.notes import Note, make_loop, note, noted, noted_ids, running, stands_at
from tidegate import Context
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool, open_pool


@dataclass(eq=False)
class LosesAnswers(Proxy):
    """Hands on the request that holds `marked`, and breaks the connection in the middle of the answer to it."""

    marked: bytes | None = None
    has_lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.marked is not None and self.marked in data:
            (link,) = [each for each in self._links if each.server is writer]
            link.cuts_next_answer, self.marked = True, None
            self.has_lost.set()
        await super()._pass_on(data, writer)


@dataclass
class Scene:
    """A job whose pool leads through `proxy`, while the test looks past it."""

    proxy: LosesAnswers
    pool: Pool
    dsn: str
    broker: MemoryBroker
    topic: str
    calls: list[str] = field(default_factory=list)

    async def loop(self) -> ConsumerLoop:
        async def counted(command: Note, ctx: Context[None]) -> None:
            self.calls.append(command.id)
            await note(command, ctx)

        return await make_loop(self.pool, self.dsn, self.broker, self.topic, handler=counted)

    def send(self, n: int, *, id: str | None = None) -> None:
        self.broker.append(noted(self.topic, n, id=id))


@pytest.fixture
async def scene(pool: Pool, database: str, unique_name: Callable[[str], str]) -> AsyncIterator[Scene]:
    broker, topic = MemoryBroker(), unique_name("lost")
    broker.create_topic(topic, 1)
    async with _through_a_proxy(database) as (proxy, dsn), open_pool(dsn, size=8) as worker:
        yield Scene(proxy, worker, dsn, broker, topic)


@asynccontextmanager
async def _through_a_proxy(dsn: str) -> AsyncIterator[tuple[LosesAnswers, str]]:
    server, (port,) = urlsplit(dsn), free_ports(1)
    proxy = LosesAnswers("postgres", port, server.port or 5432)
    account = server.netloc.rpartition("@")[0]
    async with proxy.listening():
        yield proxy, server._replace(netloc=f"{account}@127.0.0.1:{port}").geturl()


async def test_a_commit_whose_answer_is_lost_is_found_done(scene: Scene, pool: Pool) -> None:
    """G2: mine, and at my target: it had committed. Nothing is handled again, nothing is dead-lettered."""
    async with running(await scene.loop()):
        scene.send(0)
        await stands_at(pool, 1)
        scene.proxy.marked = b"COMMIT"
        scene.send(1)
        await asyncio.wait_for(scene.proxy.has_lost.wait(), 10)
        scene.send(2)
        await stands_at(pool, 3)

    assert scene.calls == ["e0", "e1", "e2"]
    assert await noted_ids(pool) == ["e0", "e1", "e2"]
    assert await _row(pool) == (1, True), "taken over again, as if it were another's"


async def test_a_claim_whose_answer_is_lost_is_made_again(scene: Scene, pool: Pool) -> None:
    """G2: the transaction ended with its connection: mine, and where it was. The batch runs again, and acts once."""
    event = uuid4()
    async with running(await scene.loop()):
        scene.send(0)
        await stands_at(pool, 1)
        scene.proxy.marked = event.bytes  # an id that is a UUID goes into the claim as it is
        scene.send(1, id=str(event))
        await asyncio.wait_for(scene.proxy.has_lost.wait(), 10)
        await stands_at(pool, 2)

    assert scene.calls == ["e0", str(event)]
    assert await noted_ids(pool) == sorted(["e0", str(event)])


async def test_a_position_that_is_mine_and_elsewhere_is_where_i_go_on(scene: Scene, pool: Pool) -> None:
    """Mine, and not at my target: so it is when the answer to a step over hidden offsets was lost. Nobody else is
    looked for, no epoch is spent, and the records before it are not handled again."""
    async with running(await scene.loop()):
        scene.send(0)
        await stands_at(pool, 1)
        log = scene.broker.log(TopicPartition(scene.topic, 0))
        assert log is not None
        log.skip(3)
        await pool.execute("UPDATE tidegate.position SET next_offset = 4")
        scene.send(4)
        await stands_at(pool, 5)

    assert scene.calls == ["e0", "e4"]
    assert await _row(pool) == (1, True)


async def test_a_row_that_is_gone_is_begun_again_and_nothing_acts_twice(scene: Scene, pool: Pool) -> None:
    """No row: the work is dropped, and the group takes our commit, so the partition is ours: taken over anew, from the
    log's start, as for a job that never ran. The claims know what is done."""
    async with running(await scene.loop()):
        for n in range(3):
            scene.send(n)
        await stands_at(pool, 3)
        await pool.execute("DELETE FROM tidegate.position")
        scene.send(3)
        await stands_at(pool, 4)

    assert await noted_ids(pool) == ["e0", "e1", "e2", "e3"]
    assert scene.calls.count("e0") == 1


async def test_a_release_whose_answer_is_lost_ends_nothing(scene: Scene, pool: Pool) -> None:
    """A stop that cannot tell Postgres that it is one ends all the same, and the next owner finds everything."""
    loop = await scene.loop()
    async with running(loop):
        scene.send(0)
        await stands_at(pool, 1)
        scene.proxy.drop()
    scene.send(1)
    async with running(await scene.loop()):
        await stands_at(pool, 2)

    assert scene.calls == ["e0", "e1"]


async def test_a_takeover_whose_answer_is_lost_is_made_again(scene: Scene, pool: Pool) -> None:
    """The row is ours and we do not know it: taken once more, an epoch is spent and nothing else."""
    async with running(await scene.loop()):
        scene.send(0)
        await stands_at(pool, 1)
    assert await _row(pool) == (1, True)
    scene.proxy.marked = b"COMMIT"  # nothing else commits before the first batch
    async with running(await scene.loop()):
        await asyncio.wait_for(scene.proxy.has_lost.wait(), 10)
        scene.send(1)
        await stands_at(pool, 2)
        assert await _row(pool) == (3, False)

    assert scene.calls == ["e0", "e1"]


async def _row(pool: Pool) -> tuple[int, bool]:
    """The position's epoch, and whether nobody owns it."""
    row = await pool.fetchrow("SELECT epoch, owner IS NULL AS is_released FROM tidegate.position")
    assert row is not None
    return row["epoch"], row["is_released"]
