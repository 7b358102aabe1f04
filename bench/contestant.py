"""One run of one contestant, in a process of its own: `python -m bench.contestant '{…}'` prints what it measured."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec
import psutil
import uvloop

from bench import clickhouse, peers
from bench.elasticsearch import bare_requests, from_kafka
from bench.redelivery import redeliver
from bench.replay import replay
from bench.stub import BATCH_SIZE, Stopwatch, StubSink
from bench.workload import JOB, application
from tidegate.worker import calm_collector, run_worker
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings, read_settings


class Plan(msgspec.Struct, kw_only=True):
    """What to run. `service` names group and job; the inbox is the (fresh) database of the environment."""

    contestant: str
    topic: str = ""
    service: str = ""
    events: int = 0
    batch_size: int = BATCH_SIZE
    lanes: int = 2
    sink_delay: float = 0.0
    is_silent: bool = False
    """Nothing is logged."""
    loop: str = "uvloop"

    def on(self, topic: str, events: int) -> Plan:
        """The same for a topic and a number of events."""
        return msgspec.structs.replace(self, topic=topic, events=events)


class Result(msgspec.Struct, kw_only=True):
    """What a run measured. Postgres: time of the backends of this run, and the log they wrote; 0 if not known."""

    events: int
    seconds: float
    cpu_seconds: float
    postgres_cpu_seconds: float = 0.0
    wal_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.events / self.seconds


_PEERS: dict[str, peers.Loop] = {
    "raw": peers.raw,
    "hand-written": peers.hand_written,
    "row at a time": peers.row_at_a_time,
    "naive": peers.naive,
}
_TO_CLICKHOUSE = {"clickhouse inserts": clickhouse.bare_inserts, "clickhouse sink": clickhouse.through_the_sink}
_IS_PARKING = {"replay": True, "replay without order": False}


async def measure(plan: Plan, settings: Settings) -> Result:
    """Runs the contestant until its events are through the sink."""
    if plan.contestant == "redelivery":
        read = await redeliver(settings, service=plan.service, topic=plan.topic, events=plan.events)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds)
    if plan.contestant == "elasticsearch":
        read = await from_kafka(settings, service=plan.service, topic=plan.topic, events=plan.events)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds)
    if plan.contestant == "clickhouse":
        read = await clickhouse.from_kafka(settings, service=plan.service, topic=plan.topic, events=plan.events)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds)
    if plan.contestant in _TO_CLICKHOUSE:
        read = await _TO_CLICKHOUSE[plan.contestant](settings, events=plan.events, lanes=plan.lanes)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds)
    if plan.contestant == "elasticsearch requests":
        read = await bare_requests(settings, events=plan.events, lanes=plan.lanes)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds)
    if plan.contestant in _IS_PARKING:
        is_parking = _IS_PARKING[plan.contestant]
        read = await replay(settings, service=plan.service, letters=plan.events, is_parking=is_parking)
        cpu, _ = await _postgres_share(settings)
        return Result(events=read.events, seconds=read.seconds, cpu_seconds=read.cpu_seconds, postgres_cpu_seconds=cpu)
    stopwatch = Stopwatch(plan.events)
    sink = StubSink(stopwatch, batch_size=plan.batch_size, delay=plan.sink_delay)
    stop = asyncio.Event()
    run = _tidegate(plan, settings, sink, stop) if plan.contestant == "tidegate" else _peer(plan, settings, sink)
    task = asyncio.ensure_future(run)
    await _first(task, stopwatch.done)
    cpu, wal = await _postgres_share(settings)
    stop.set()
    if plan.contestant != "tidegate":
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    reading = stopwatch.reading
    assert reading is not None
    return Result(
        events=reading.events,
        seconds=reading.seconds,
        cpu_seconds=reading.cpu_seconds,
        postgres_cpu_seconds=cpu,
        wal_bytes=wal,
    )


def _tidegate(plan: Plan, settings: Settings, sink: StubSink, stop: asyncio.Event) -> Awaitable[None]:
    """The process that `tidegate run` is: consumers, relay, upkeep, HTTP endpoint, metrics and logs."""
    app = application(plan.service, plan.topic, sink)
    configure_logs(style="json", level="error" if plan.is_silent else "info")
    return run_worker(app, settings, [JOB], stop=stop)


def _peer(plan: Plan, settings: Settings, sink: StubSink) -> Awaitable[None]:
    calm_collector()  # as Tidegate does after its start
    return _PEERS[plan.contestant](peers.Setting(settings, plan.topic, plan.service, plan.batch_size, sink))


async def _first(task: asyncio.Future[None], done: asyncio.Event) -> None:
    """Returns when `done`; raises what ended `task` before."""
    waiter: asyncio.Future[Any] = asyncio.ensure_future(done.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        raise RuntimeError("the contestant ended before its events were through")


async def _postgres_share(settings: Settings) -> tuple[float, int]:
    """CPU seconds and bytes of log of this database's backends, as far as this machine and server can tell."""
    connection = await asyncpg.connect(settings.postgres_dsn.get_secret_value())
    try:
        pids = [row["pid"] for row in await connection.fetch(_BACKENDS)]
        cpu = sum(_cpu_seconds(pid) for pid in pids)
        knows_wal = connection.get_server_version().major >= 18
        wal = await connection.fetchval(_WAL, pids) if knows_wal else 0
    finally:
        await connection.close()
    return cpu, int(wal)


_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_WAL = "SELECT coalesce(sum((pg_stat_get_backend_wal(pid)).wal_bytes), 0)::bigint FROM unnest($1::int[]) AS p (pid)"


def _cpu_seconds(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        return float(sum(process.cpu_times()[:2])) if "postgres" in process.name() else 0.0
    except psutil.Error:
        return 0.0  # a server on another machine


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    settings = read_settings(http_port=0, lanes=plan.lanes)
    loops: dict[str, Callable[[], Any]] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    with asyncio.Runner(loop_factory=loops[plan.loop]) as runner:
        result = runner.run(measure(plan, settings))
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
