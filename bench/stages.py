"""Where the CPU of a batch goes, stage by stage, in one process without servers: the same records, from memory."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from aiokafka.structs import ConsumerRecord

from bench import peers
from bench.records import Written, new_orders
from bench.stub import BATCH_SIZE, Stopwatch, StubSink
from bench.workload import JOB, application
from consumers.batch import Batch, Outcome
from consumers.claims import claims_of
from consumers.decoding import Decoder
from consumers.meter import Meter
from consumers.projecting import project
from tidegate.worker import calm_collector
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import Fence, JobId, RunId
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.metrics import Metrics

T = TypeVar("T")

_RECORDS = 20_000
_PASSES = 5
_TOPIC = "orders"


class Stages:
    """Takes batches through every stage; `costs` has microseconds of CPU an event, a value a batch."""

    def __init__(self) -> None:
        self.costs: dict[str, list[float]] = {}
        self._sink = StubSink(Stopwatch(1))
        self._job = application("bench", _TOPIC, self._sink).job(JOB)
        topics = {topic.name: topic for topic in self._job.topics}
        self._decoder = Decoder(topics, self._job.events, self._job.unlisted)
        self._rule = self._job.claim_rule
        self._meter = Meter(self._job.job_code, Metrics(), SystemClock())

    async def tidegate(self, batch: Batch) -> None:
        decoded = self._time("tidegate: decode", lambda: self._decoder.decode(batch.records))
        claims = self._time("tidegate: claims", lambda: claims_of(self._rule, batch, decoded.events))
        projected = self._time("tidegate: project, encode", lambda: project(batch, decoded, claims, self._sink))
        started = time.process_time()
        await self._sink.apply(projected.encoded)
        self._note("tidegate: bulk body", started)
        outcome = Outcome(applied=len(batch.records))
        self._time("tidegate: metrics, log line", lambda: self._meter.settled(batch, outcome, seconds=0.01))

    def hand_written(self, batch: Batch) -> None:
        lines, ids = self._time(
            "hand-written: decode, project, encode", lambda: peers.decode(batch.records, self._sink.form)
        )
        self._time("hand-written: claims", lambda: peers.claims(ids))
        self._time("hand-written: bulk body", lambda: b"".join(lines))

    def _time(self, stage: str, work: Callable[[], T]) -> T:
        started = time.process_time()
        done = work()
        self._note(stage, started)
        return done

    def _note(self, stage: str, started: float) -> None:
        self.costs.setdefault(stage, []).append((time.process_time() - started) / BATCH_SIZE * 1e6)


async def measure() -> dict[str, list[float]]:
    """Returns microseconds of CPU an event by stage."""
    stages, batches = Stages(), list(_batches())
    calm_collector()
    for _ in range(_PASSES):
        for batch in batches:
            stages.hand_written(batch)
            await stages.tidegate(batch)
    return stages.costs


async def stage_costs() -> dict[str, list[float]]:
    """Returns what `measure` finds in a process of its own."""
    arguments = [sys.executable, "-m", "bench.stages"]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return msgspec.json.decode(out, type=dict[str, list[float]])


def _batches() -> Iterator[Batch]:
    records = [_record(number, written) for number, written in enumerate(new_orders(_RECORDS))]
    for start in range(0, _RECORDS, BATCH_SIZE):
        fence = Fence(JobId(1), RunId(0), _TOPIC, 0, 1, start)
        yield Batch(fence, UUID(int=1), records[start : start + BATCH_SIZE], start + BATCH_SIZE)


def _record(offset: int, written: Written) -> Any:
    timestamp, key, value, headers = written
    return ConsumerRecord(_TOPIC, 0, offset, timestamp, 0, key, value, None, len(key), len(value), tuple(headers))


def main() -> None:
    """Prints the costs as JSON; what is logged goes nowhere."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        configure_logs(style="json", level="info")
        costs = asyncio.run(measure())
    sys.stdout.write(msgspec.json.encode(costs).decode())


if __name__ == "__main__":
    main()
