"""The jobs of an app, running on the in-memory Kafka, and how far they have come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from consumers.batch import Batch, Outcome
from consumers.loop import ConsumerLoop, Join
from consumers.meter import Meter
from tidegate.app import App
from tidegate.assembly import JobParts, live_loop
from tidegate.resources import Resources
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.errors import TidegateError, Transient
from tidegate_kernel.event import JobCode, JobId, TopicPartition

# News of settled batches come by themselves; what moves a position without settling is noticed this late.
_LOOK_AGAIN_SECONDS = 0.2


class NotSettled(TidegateError):
    """Records were not handled in time, or a job ended with an error."""


class _NoticingMeter(Meter):
    """Calls `notice` whenever a batch is settled or held back."""

    def __init__(self, job: JobCode, resources: Resources, notice: Callable[[], None]) -> None:
        super().__init__(job, resources.metrics, resources.clock)
        self._notice = notice

    def settled(self, batch: Batch, outcome: Outcome, *, seconds: float) -> None:
        super().settled(batch, outcome, seconds=seconds)
        self._notice()


class RunningJobs:
    """Live consumers of all jobs; they can be stopped and started again, as a deployment does."""

    def __init__(self, app: App, parts: Sequence[JobParts], broker: MemoryBroker, resources: Resources) -> None:
        self._app, self._broker, self._resources = app, broker, resources
        self._news = asyncio.Event()
        self._parts = [
            replace(part, meter=_NoticingMeter(part.job.job_code, resources, self._news.set)) for part in parts
        ]
        self._running: list[tuple[JobParts, ConsumerLoop, asyncio.Task[None]]] = []

    @property
    def numbers(self) -> list[JobId]:
        """The jobs' numbers in Postgres."""
        return [part.id for part in self._parts]

    def number(self, code: str) -> JobId:
        """The number of one job."""
        return next(part.id for part in self._parts if part.job.code == code)

    async def rendered(self) -> None:
        """Folds have rendered all that can be: a key whose sink is down, or refuses it, stays dirty."""
        for part in self._parts:
            if part.renderer is not None:
                with suppress(Transient):
                    await part.renderer.render_all()

    def start(self) -> None:
        """Every job joins its group and goes on at its position."""
        self._running = []
        for part in self._parts:
            loop = live_loop(part, self._join(part), self._resources.clock)
            task = asyncio.create_task(loop.run(), name=part.job.code)
            task.add_done_callback(lambda _: self._news.set())
            self._running.append((part, loop, task))

    async def stop(self) -> None:
        """All have finished what was in hand and left."""
        for _, loop, _ in self._running:
            loop.stop()
        if self._running:  # an app may have jobs by the clock alone
            await asyncio.wait([task for *_, task in self._running])
        await self._broker.rebalanced()

    def raise_if_failed(self) -> None:
        """Raises NotSettled for a job that ended with an error."""
        for part, _, task in self._running:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                causes = "; ".join(f"{type(each).__name__}: {each}" for each in _leaves(error))
                raise NotSettled(f"job {part.job.code!r} ended: {causes}") from error

    async def settled(self) -> None:
        """Returns when no job is behind. Raises NotSettled for one that ended, or whose partition is blocked."""
        while self.behind():
            self.raise_if_failed()
            self._news.clear()
            try:
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                continue

    def behind(self) -> list[str]:
        """One sentence for each partition that some job has not settled to its end."""
        return [
            said
            for part, loop, _ in self._running
            for topic in part.job.topics
            for partition in self._broker.partitions(topic.name)
            if (said := self._said_of(part, loop, partition)) is not None
        ]

    def _said_of(self, part: JobParts, loop: ConsumerLoop, partition: TopicPartition) -> str | None:
        log, held = self._broker.log(partition), loop.holdings.get(partition)
        last = None if log is None else log.last_offset()
        if last is None or (held is not None and held.position.next_offset > last):
            return None
        about = f"job {part.job.code!r}, {partition}"
        if held is None:
            return f"{about}: not taken over yet"
        if held.blocked is not None:
            raise NotSettled(f"{about} is blocked: {held.blocked}")
        if held.holds:
            return f"{about}: rests at {held.position.next_offset}: {'; '.join(held.holds.values())}"
        tries = 0 if held.waiting is None else held.waiting.attempts.tries
        waits = f", a batch failed {tries} times and waits to be tried again" if tries else ""
        return f"{about}: settled up to {held.position.next_offset}, the last record is {last}{waits}"

    def _join(self, part: JobParts) -> Join:
        topics = [topic.name for topic in part.job.topics]
        return partial(self._broker.join, self._app.group(part.job.job_code), topics)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of groups."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)
