"""Contestants whose sink is the stub: Tidegate as a worker, and the loops it is measured against."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from bench import peers
from bench.plan import Plan, Result, result_of
from bench.postgres_share import postgres_share, with_share
from bench.stub import Stopwatch, StubSink
from bench.workload import JOB, application
from tidegate.worker import calm_collector, run_worker
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings


async def tidegate(plan: Plan, settings: Settings) -> Result:
    """The process that `tidegate run` is: consumers, relay, upkeep, HTTP endpoint, metrics and logs."""
    stopwatch, stop = Stopwatch(plan.events), asyncio.Event()
    sink = StubSink(stopwatch, batch_size=plan.batch_size, delay=plan.sink_delay)
    configure_logs(style="json", level="error" if plan.is_silent else "info")
    worker = asyncio.ensure_future(run_worker(application(plan.service, plan.topic, sink), settings, [JOB], stop=stop))
    reading = await stopwatch.read_while(worker)
    share = await postgres_share(settings)
    stop.set()
    await worker
    return with_share(result_of(reading), share)


async def peer(plan: Plan, settings: Settings, *, loop: peers.Loop) -> Result:
    """A loop, with the collector set as Tidegate does after its start."""
    stopwatch = Stopwatch(plan.events)
    sink = StubSink(stopwatch, batch_size=plan.batch_size, delay=plan.sink_delay)
    calm_collector()
    running = asyncio.ensure_future(loop(peers.Setting(settings, plan.topic, plan.service, plan.batch_size, sink)))
    reading = await stopwatch.read_while(running)
    share = await postgres_share(settings)
    running.cancel()
    await asyncio.wait([running])
    return with_share(result_of(reading), share)


CONTESTANTS: Mapping[str, Callable[[Plan, Settings], Awaitable[Result]]] = {
    "tidegate": tidegate,
    "raw": partial(peer, loop=peers.raw),
    "hand-written": partial(peer, loop=peers.hand_written),
    "row at a time": partial(peer, loop=peers.row_at_a_time),
    "naive": partial(peer, loop=peers.naive),
}
