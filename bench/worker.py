"""The command `tidegate run` as a process, watched from outside: how soon it works, and how much memory it takes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import psutil

from bench.stage import RunFailed, Stage
from tidegate_kernel.logs import BATCH_SETTLED

_FIRST_EVENT_SECONDS = 60.0
_SAMPLE_SECONDS = 0.25
_MEGABYTE = 1024 * 1024
_SETTLED = "SELECT coalesce(sum(next_offset), 0)::bigint FROM tidegate.position"


async def seconds_to_first_event(stage: Stage, topic: str) -> float:
    """From starting the process to its first settled batch."""
    started = time.perf_counter()
    async with stage.fresh_database() as dsn, _worker(stage, topic, dsn) as process:
        assert process.stderr is not None
        async with asyncio.timeout(_FIRST_EVENT_SECONDS):
            async for line in process.stderr:
                if BATCH_SETTLED.encode() in line:
                    return time.perf_counter() - started
    raise RunFailed("the worker ended before it settled a batch")


async def megabytes_while_catching_up(stage: Stage, topic: str, records: int) -> list[float]:
    """Samples of the process's resident memory from its first settled record to its last."""
    samples: list[float] = []
    async with stage.fresh_database() as dsn, _worker(stage, topic, dsn) as process:
        drained = asyncio.create_task(_drain(process))
        watched, connection = psutil.Process(process.pid), await asyncpg.connect(dsn)
        try:
            while (settled := await connection.fetchval(_SETTLED)) < records:
                if process.returncode is not None:
                    raise RunFailed("the worker ended before it was through")
                if settled:
                    samples.append(watched.memory_info().rss / _MEGABYTE)
                await asyncio.sleep(_SAMPLE_SECONDS)
        finally:
            await connection.close()
            drained.cancel()
    return samples


@asynccontextmanager
async def _worker(stage: Stage, topic: str, dsn: str) -> AsyncIterator[asyncio.subprocess.Process]:
    service = await stage.fresh_service()
    environment = {**stage.environment(dsn), "BENCH_TOPIC": topic, "BENCH_SERVICE": service}
    arguments = [sys.executable, "-m", "tidegate", "run", "--all", "--app", "bench.app:app", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *arguments, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.read(_MEGABYTE):
        pass
