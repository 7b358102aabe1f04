"""Brings what folds have made to the sink: any number of renderers side by side, each with its own keys.

A write carries the revision as its version, so a late one of a renderer that was thought dead changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from projections.folds.codec import StateCodec
from projections.folds.dirty import DirtyKeys, Taken
from projections.folds.rendering import Render, Rendered, rendered
from projections.sink import Sink
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import TidegateError, Transient
from tidegate_kernel.metrics import Metrics

_log = structlog.get_logger(__name__)

# What other processes have folded and then died is noticed this late; what this one folds wakes it.
_LOOK_AGAIN_SECONDS = 1.0
# Between rounds that find little: a key that changes all the time is written ten times a second, not a thousand.
_GATHER_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# Counting keys that wait reads them: as often as Prometheus asks is enough.
_MEASURE_EVERY_SECONDS = 15.0
# Longer than a statement takes, shorter than the lease that ends by itself.
_GIVE_BACK_SECONDS = 1.0
# Eight seconds after the drain whatever still hangs is cut off (docs/guarantees.md, G10): this is part of them.
_LAST_ROUND_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Projection:
    """What is rendered of a job, and how. `release`: the application's version; `store`: the sink's kind."""

    job: str
    codec: StateCodec
    render: Render
    store: str
    release: str
    chunk: int


class Renderer:
    """One worker's renderer of a job."""

    def __init__(self, dirty: DirtyKeys, sink: Sink, projection: Projection, clock: Clock, *, metrics: Metrics) -> None:
        self._dirty, self._sink, self._projection = dirty, sink, projection
        self._clock, self._metrics = clock, metrics
        self._changed = asyncio.Event()
        self._measured = -_MEASURE_EVERY_SECONDS
        self.trouble: str | None = None
        """Why nothing is rendered now, if nothing is."""

    def notice(self) -> None:
        """Something was folded: look now."""
        self._changed.set()

    async def run(self) -> None:
        """Renders until cancelled. Whatever is in the way is waited out; keys stay dirty meanwhile."""
        tries = 0
        while not await self._begin():
            tries += 1
            await self._clock.sleep(_pause(tries))
        tries = 0
        while True:
            try:
                taken = await self.render_once()
            except TidegateError as error:
                tries += 1
                await self._measure()
                await self._hold_back(error, tries)
            else:
                tries = 0
                self._go_on()
                await self._measure()
                await self._wait(is_busy=taken >= self._projection.chunk)

    async def render_once(self) -> int:
        """Some dirty keys are rendered, or rest with what was in the way; returns how many were taken.

        Raises Transient, or Misconfigured for a sink that is not as declared: they are dirty as before then.
        """
        taken = await self._dirty.take(self._projection.chunk)
        if not taken:
            return 0
        try:
            made = await self._applied(taken)
            clean = await self._dirty.clear(made.keys)
            failed = await self._dirty.rest(made.failed, release=self._projection.release)
        except (TidegateError, asyncio.CancelledError):
            await self._give_back(taken)
            raise
        self._metrics.fold_rendered.labels(self._projection.job).inc(clean)
        if failed:
            self._tell_failed(made, failed)
        return len(taken)

    async def render_all(self) -> None:
        """Everything that can be rendered was. Raises as `render_once`."""
        while await self.render_once():
            pass

    async def rest(self) -> None:
        """What this process has folded is in the sink before it ends, if sink and Postgres answer in time."""
        try:
            async with asyncio.timeout(_LAST_ROUND_SECONDS):
                await self.render_all()
        except (TidegateError, TimeoutError):
            return  # it is dirty in Postgres: any other worker renders it

    async def _applied(self, taken: Sequence[Taken]) -> Rendered:
        projection = self._projection
        made = rendered(taken, projection.codec, projection.render, self._sink)
        if made.encoded:
            made.applied(await self._sink.apply(made.encoded))
        return made

    async def _give_back(self, taken: Sequence[Taken]) -> None:
        """Whoever comes next need not wait for the lease; it ends by itself where that cannot be said now."""
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                await self._dirty.give_back([each.key for each in taken])
        except (Transient, TimeoutError):
            return

    async def _begin(self) -> bool:
        """Whether the sink is as declared, and keys that another release could not render are tried again."""
        projection = self._projection
        try:
            await self._sink.check()
            while await self._dirty.retry(release=projection.release, most=projection.chunk):
                pass
        except TidegateError as error:
            self._tell(error)
            return False
        return True

    async def _hold_back(self, error: TidegateError, tries: int) -> None:
        self._tell(error)
        is_away = not await self._sink.probe()
        self._metrics.breaker_open.labels(self._projection.job, self._projection.store).set(int(is_away))
        await self._clock.sleep(_pause(tries))

    def _go_on(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            self._metrics.breaker_open.labels(self._projection.job, self._projection.store).set(0)
            _log.warning(logs.RENDERING_RESUMED, job=self._projection.job)

    def _tell(self, error: TidegateError) -> None:
        if self.trouble is None:
            _log.warning(logs.RENDERING_HELD_BACK, job=self._projection.job, error=str(error))
        self.trouble = str(error)

    def _tell_failed(self, made: Rendered, failed: int) -> None:
        job = self._projection.job
        self._metrics.fold_failures.labels(job).inc(failed)
        # Without its key, which may name a person.
        _log.warning(logs.RENDERING_FAILED, job=job, keys=failed, error=made.failed[0].error)

    async def _wait(self, *, is_busy: bool) -> None:
        if is_busy:
            return
        await self._clock.sleep(_GATHER_SECONDS)
        try:
            async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def _measure(self) -> None:
        if self._clock.monotonic() - self._measured < _MEASURE_EVERY_SECONDS:
            return
        self._measured = self._clock.monotonic()
        try:
            state, job = await self._dirty.state(), self._projection.job
        except Transient:
            return  # the next measure tells
        self._metrics.fold_dirty.labels(job).set(state.waiting)
        self._metrics.fold_failed.labels(job).set(state.failed)
        self._metrics.fold_oldest.labels(job).set(state.waiting_seconds)


def _pause(tries: int) -> float:
    return min(_LONGEST_PAUSE_SECONDS, 0.1 * 2.0 ** min(tries, 16))
