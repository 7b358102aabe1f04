"""One roll, from an empty database to the figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import asyncpg
import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from tests.rollout.chart import Workload
from tests.rollout.measure import Rolled, counted, generations, longest_gap, partitions_seen, repeated
from tests.rollout.pods import Pods

_APP = Path(__file__).with_name("app")
_PARTITIONS = 8
_ROUND_SECONDS = 0.05
# Long enough to see how long partitions rest without a roll, and after it.
_QUIET_SECONDS = 5.0
_DRAINED_SECONDS = 60.0
# Static members of a rehearsal before this one keep their share of the group until their session ends.
_FLOWING_SECONDS = 120.0


@dataclass
class Load:
    """A steady stream of records, the same share for each partition."""

    topic: str
    rate: float
    produced: int = 0

    async def run(self, producer: AIOKafkaProducer, stop: asyncio.Event) -> None:
        """Returns after `stop`, with all that was sent acknowledged."""
        loop = asyncio.get_running_loop()
        started, sent = loop.time(), list[asyncio.Future[object]]()
        while not stop.is_set():
            while self.produced < (loop.time() - started) * self.rate:
                sent.append(await self._send(producer))
                self.produced += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _ROUND_SECONDS)
        await producer.flush()
        await asyncio.gather(*sent)

    async def _send(self, producer: AIOKafkaProducer) -> asyncio.Future[object]:
        n = self.produced
        headers = {
            "ce_specversion": "1.0",
            "ce_id": f"{self.topic}-{n}",
            "ce_source": "/rollout",
            "ce_type": "rolled.placed",
            "ce_time": datetime.now(UTC).isoformat(),
            "content-type": "application/json",
        }
        future: asyncio.Future[object] = await producer.send(
            self.topic,
            msgspec.json.encode({"n": n}),
            key=b"%d" % n,
            partition=n % _PARTITIONS,
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
        return future


class Servers(NamedTuple):
    """Kafka, and a migrated, otherwise empty database."""

    bootstrap: str
    dsn: str


async def rehearse(workload: Workload, *, rate: float, at: Servers) -> Rolled:
    """Rolls the workload once under `rate` records a second.

    Raises RuntimeError, and keeps the logs of the pods, if one does not start.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-rollout-") as folder:
        try:
            return await _rehearsed(workload, rate, Path(folder), at)
        except BaseException:
            kept = shutil.copytree(folder, f"{folder}-failed")
            print(f"logs of the pods: {kept}", file=sys.stderr)
            raise


async def _rehearsed(workload: Workload, rate: float, folder: Path, at: Servers) -> Rolled:
    load = Load(f"rolled-{secrets.token_hex(4)}", rate)
    environment = pod_environment(load.topic, folder, at)
    seen, joins = Path(environment["ROLLED_SEEN"]), Path(environment["ROLLED_JOINS"])
    await _prepare(environment)
    pods, loop = Pods(workload, environment, _APP, folder), asyncio.get_running_loop()
    connection = await asyncpg.connect(at.dsn)
    try:
        await pods.start_all()
        async with _flowing(load, at.bootstrap):
            await _until_flowing(connection)
            await asyncio.sleep(_QUIET_SECONDS)
            joined, calm = len(joins.read_text()), await _now(connection)
            began = loop.time()
            await pods.roll()
            seconds = loop.time() - began
            await asyncio.sleep(_QUIET_SECONDS)
        await _until_drained(connection, load)
        effects, events = await counted(connection)
        return Rolled(
            workload=str(workload),
            seconds=seconds,
            longest_gap=await longest_gap(connection, calm, await _now(connection)),
            longest_gap_before=await longest_gap(connection, datetime(1970, 1, 1, tzinfo=UTC), calm),
            produced=load.produced,
            lost=load.produced - events,
            doubled=effects - events,
            repeated=repeated(seen),
            generations=len(generations(joins, after=joined)),
            exit_codes=list(pods.ends),
        )
    finally:
        await pods.end()
        await connection.close()
        await _delete(load.topic, at.bootstrap)


def pod_environment(topic: str, folder: Path, at: Servers) -> dict[str, str]:
    """What pods have beside the chart's settings: servers, and where they note what they saw."""
    # A setting of whoever types the rehearsal would come before the chart's own.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return {
        **inherited,
        "TIDEGATE_KAFKA_BOOTSTRAP": at.bootstrap,
        "TIDEGATE_POSTGRES_DSN": at.dsn,
        "TIDEGATE_APP": "rolled_app:app",
        "ROLLED_TOPIC": topic,
        "ROLLED_SEEN": str(folder / "seen"),
        "ROLLED_JOINS": str(folder / "joins"),
    }


async def _prepare(environment: Mapping[str, str]) -> None:
    """Tables and topics are there."""
    command = [sys.executable, "-m", "tidegate", "dev-prepare"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_APP, env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    if code := await process.wait():
        raise RuntimeError(f"tidegate dev-prepare ended with {code}")


@contextlib.asynccontextmanager
async def _flowing(load: Load, bootstrap: str) -> AsyncIterator[None]:
    """Records come inside the block; after it all of them are in Kafka."""
    producer, stop = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True), asyncio.Event()
    await producer.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(producer, stop))
            yield
            stop.set()
    finally:
        await producer.stop()


async def _delete(topic: str, bootstrap: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.delete_topics([topic])
    finally:
        await client.close()


async def _now(connection: asyncpg.Connection[asyncpg.Record]) -> datetime:
    now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    return now


async def _until_flowing(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Every partition is worked on: a roll of pods that still wait for their group would show nothing."""
    async with asyncio.timeout(_FLOWING_SECONDS):
        while await partitions_seen(connection) < _PARTITIONS:
            await asyncio.sleep(0.1)


async def _until_drained(connection: asyncpg.Connection[asyncpg.Record], load: Load) -> None:
    """All that was produced has acted; raises nothing if it has not: that is what is measured."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED_SECONDS):
            while (await counted(connection))[1] < load.produced:
                await asyncio.sleep(0.2)
