"""What redelivery below the position costs: records that were settled come again, and are dropped by one comparison."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from bench.stub import Reading, Stopwatch, StubSink
from bench.workload import JOB, application
from consumers.loop import ConsumerLoop
from tidegate.assembly import assemble, live_loop
from tidegate.resources import open_resources
from tidegate.worker import calm_collector
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import join_group
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings
from tidegate_kernel.source import RecordSource

_LOOK_SECONDS = 0.005


async def redeliver(settings: Settings, *, service: str, topic: str, events: int) -> Reading:
    """Settles about `events` events, seeks back to the first, and reads until a partition is where it was."""
    clock, stopwatch = SystemClock(), Stopwatch(events)
    configure_logs(style="json", level="info")
    app = application(service, topic, StubSink(stopwatch))
    job = app.job(JOB)
    async with open_resources(app, settings, jobs=1, clock=clock) as resources:
        parts = await assemble(app, job, resources, sink=StubSink(stopwatch))
        loop = live_loop(
            parts,
            lambda assigned, revoked: join_group(
                settings.kafka, group=app.group(job.job_code), topics=[topic], on_assigned=assigned, on_revoked=revoked
            ),
            clock,
        )
        calm_collector()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run(), name=JOB)
            await stopwatch.done.wait()
            reading = await _again(loop)
            loop.stop()
    return reading


async def _again(loop: ConsumerLoop) -> Reading:
    source, settled = loop.source, {p: end for p, end in loop.holdings.settled().items() if end}
    assert source is not None
    started, cpu = time.perf_counter(), time.process_time()
    for partition in settled:
        source.seek(partition, 0)
    while not any(_drained(source, p) >= end for p, end in settled.items()):  # noqa: ASYNC110  # nobody tells us
        await asyncio.sleep(_LOOK_SECONDS)
    return Reading(_total(source, settled), time.perf_counter() - started, time.process_time() - cpu)


def _total(source: RecordSource, partitions: Mapping[TopicPartition, int]) -> int:
    return sum(min(_drained(source, partition), end) for partition, end in partitions.items())


def _drained(source: RecordSource, partition: TopicPartition) -> int:
    return source.drained_to(partition) or 0
