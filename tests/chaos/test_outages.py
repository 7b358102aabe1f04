"""Each server away for a while under load: nothing is dead-lettered or lost, members stay, work resumes within seconds.

`CHAOS_OUTAGE_SECONDS=60` makes them all, each as long as in production; by default some, each longer than the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import asyncpg
import httpx
import pytest
import pytest_asyncio

from tests.chaos import servers
from tests.chaos.auditor.audit import audit
from tests.chaos.proxy import Proxy
from tests.chaos.run import addresses, drained, fresh_folder
from tests.chaos.scene import Scene, scene

_OUTAGE_SECONDS = float(os.environ.get("CHAOS_OUTAGE_SECONDS", "8"))

pytestmark = [
    pytest.mark.timeout(420),
    # The story's own producer drops its connections to a frozen broker without waiting for it to take leave.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(bool(servers.missing()), reason="the chaos suite starts servers of its own from packages"),
]

_RATE = 100.0
_RESUME_SECONDS = 5.0
# What a server needs by itself after its freeze, and this machine's two cores.
_MARGIN_SECONDS = 3.0
_JOBS = frozenset({"ledger", "search", "report"})

_STANDING = """
SELECT j.code, sum(p.next_offset)::bigint AS settled, sum(p.epoch)::bigint AS takeovers
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.run = 0
GROUP BY j.code
"""


@dataclass(frozen=True)
class Stage:
    """A scene whose producer goes on until `told`."""

    scene: Scene
    stop: asyncio.Event
    telling: asyncio.Task[None]

    async def told(self) -> None:
        """The story has come to its end, every record of it acknowledged."""
        self.stop.set()
        await self.telling


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = fresh_folder(tmp_path_factory.mktemp("outages") / "run")
    async with scene(folder, seed=11, rate=_RATE) as opened:
        stop = asyncio.Event()
        made = Stage(opened, stop, asyncio.create_task(opened.producer.run(stop), name="producer"))
        await _moves(opened, _JOBS, seconds=60)
        await _group_has_settled(opened)
        yield made
        await made.told()
    servers.wipe(folder)


# Each of another kind; a long run takes them all.
_IN_SHORT = [
    "postgres frozen",
    "postgres read-only",
    "kafka frozen",
    "elasticsearch refuses with 429",
    "clickhouse frozen",
]
_IN_LONG = ["postgres stopped", "postgres black", "elasticsearch frozen"]
_STOPPED = {"elasticsearch": {"search"}, "clickhouse": {"report"}}


@pytest.mark.parametrize("outage", [*_IN_SHORT, *(_IN_LONG if "CHAOS_OUTAGE_SECONDS" in os.environ else ())])
async def test_work_resumes_by_itself_within_seconds(stage: Stage, outage: str) -> None:
    """G5: partitions pause, membership is kept, nobody has to do anything."""
    at = stage.scene
    before = await _takeovers(at)
    async with _outage(at, outage):
        if others := _JOBS - _STOPPED.get(outage.partition(" ")[0], _JOBS):
            await _moves(at, others, seconds=_OUTAGE_SECONDS + 10)
        await asyncio.sleep(_OUTAGE_SECONDS)
    resumed = await _moves(at, _JOBS, seconds=60)
    print(f"{outage} for {_OUTAGE_SECONDS:.0f} s: resumed after {resumed:.1f} s")
    assert resumed <= _RESUME_SECONDS + _MARGIN_SECONDS
    if outage.startswith("kafka"):  # without a coordinator nobody can stay a member
        await _group_has_settled(at)
    else:
        assert await _takeovers(at) == before


async def test_slow_server_slows_its_own_job_alone(stage: Stage) -> None:
    """Slow is not away: it goes on at its pace, and the others at theirs."""
    at = stage.scene
    with _proxy(at, "clickhouse").delayed(1.0):
        await asyncio.sleep(_OUTAGE_SECONDS)
        assert await _moves(at, _JOBS - {"report"}, seconds=20) < _RESUME_SECONDS
        await _moves(at, {"report"}, seconds=30)


async def test_after_all_outages_everything_is_there_once(stage: Stage) -> None:
    """Whatever was away: no letter but for real poison, nothing lost, doubled or stale."""
    await stage.told()
    at = stage.scene
    assert await drained(at) == 0
    await at.fleet.stop()
    verdict = await audit(addresses(at), at.folder / "producer.jsonl")
    assert verdict.is_clean, "\n".join([*verdict.first(10), verdict.summary])


def _outage(at: Scene, outage: str) -> AbstractAsyncContextManager[None]:
    match outage:
        case "postgres stopped":
            return _stopped(at)
        case "postgres read-only":
            return _read_only(at.postgres.address)
        case "postgres black":
            return _black(at)
        case "elasticsearch refuses with 429":
            return _flooded_disk(at.elasticsearch.address)
        case _:
            servers_ = {each.name.partition("-")[0]: each for each in (at.kafka, at.postgres)}
            servers_ |= {"elasticsearch": at.elasticsearch, "clickhouse": at.clickhouse}
            return servers_[outage.partition(" ")[0]].frozen()


@contextlib.asynccontextmanager
async def _stopped(at: Scene) -> AsyncIterator[None]:
    await at.postgres.stop()
    yield
    await at.postgres.start()


@contextlib.asynccontextmanager
async def _black(at: Scene) -> AsyncIterator[None]:
    """Packets vanish; afterwards the connections of before stay dead, as behind a firewall that forgot them."""
    proxy = _proxy(at, "postgres")
    with proxy.black():
        yield
        proxy.drop()


@contextlib.asynccontextmanager
async def _read_only(dsn: str) -> AsyncIterator[None]:
    """As a primary that was demoted: sessions go on and may read."""
    await _administer(dsn, "ALTER SYSTEM SET default_transaction_read_only = on")
    yield
    await _administer(dsn, "ALTER SYSTEM RESET default_transaction_read_only")


async def _administer(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(statement)
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _flooded_disk(address: str) -> AsyncIterator[None]:
    """As beyond the flood-stage watermark: every write is answered with 429."""
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=30) as http:
        for value in (True, None):
            body = {"index.blocks.read_only_allow_delete": value}
            (await http.put("/chaos-g1/_settings", json=body)).raise_for_status()
            if value:
                yield


async def _moves(at: Scene, jobs: frozenset[str] | set[str], *, seconds: float) -> float:
    """Returns after how many seconds each of `jobs` has settled something new. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    began, first = loop.time(), await _standing(at, "settled", give_up_at=loop.time() + seconds)
    async with asyncio.timeout(seconds):
        while True:
            now = await _standing(at, "settled", give_up_at=began + seconds)
            if all(now.get(job, 0) > first.get(job, 0) for job in jobs):
                return loop.time() - began
            await asyncio.sleep(0.1)


async def _group_has_settled(at: Scene) -> None:
    """The last worker to start has joined, and nobody takes over anything any more."""
    async with asyncio.timeout(60):
        before: Mapping[str, int] = {}
        while (now := await _takeovers(at)) != before:
            before = now
            await asyncio.sleep(4.0)


async def _takeovers(at: Scene) -> Mapping[str, int]:
    return await _standing(at, "takeovers", give_up_at=asyncio.get_running_loop().time() + 20)


async def _standing(at: Scene, column: str, *, give_up_at: float) -> Mapping[str, int]:
    """Asked past the proxies; waits for a Postgres that has just come back."""
    while True:
        try:
            connection = await asyncpg.connect(at.postgres.address, timeout=3)
            try:
                return {row["code"]: int(row[column]) for row in await connection.fetch(_STANDING)}
            finally:
                connection.terminate()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if asyncio.get_running_loop().time() > give_up_at:
                raise
            await asyncio.sleep(0.1)


def _proxy(at: Scene, server: str) -> Proxy:
    return next(each for each in at.proxies if each.name.startswith(server))
