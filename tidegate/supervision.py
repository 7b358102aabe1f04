"""Keeps the live consumer of a job running for as long as the process is to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog

from consumers.failure import RetryPolicy
from consumers.loop import Join
from tidegate.assembly import JobParts, live_loop
from tidegate.vitals import Vitals
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient, Unreachable

_log = structlog.get_logger(__name__)

_RESTART = RetryPolicy(name="restart", first_delay=timedelta(seconds=1), longest_delay=timedelta(seconds=30))
# Whoever worked for that long is not in a circle: the next restart is a first one.
_LASTING_SECONDS = 600.0
# A sink is asked again so soon that its job begins within seconds of its return, and told of once a minute.
_SINK_SECONDS = 2.0
_TRIES_TOLD = 30


async def supervise(parts: JobParts, join: Join, *, clock: Clock, vitals: Vitals, stop: asyncio.Event) -> None:
    """Returns after `stop`; a loop that ends before that with an error is started anew after a pause.

    Raises Misconfigured where Kafka refuses this member at its first join, not where it does not answer then.
    """
    code, restarts = parts.job.job_code, 0
    # Everything that this task and those it starts will log is about this job.
    structlog.contextvars.bind_contextvars(job=code)
    while not stop.is_set():
        loop = live_loop(parts, join, clock)
        watcher = asyncio.create_task(_when(stop, loop.stop), name=f"stop-{code}")
        vitals.watch(parts, loop)
        began = clock.monotonic()
        try:
            await loop.run()
        except Exception as error:
            if _is_refused(error) and restarts == 0 and not loop.has_joined:
                raise  # Kafka answers and does not take this member: its settings are wrong
            # Kafka away while joining, a client that died, a defect of ours, an error of our own statements: never a
            # record's fault, so nothing is given up. What had not settled is read again.
            restarts = 1 if clock.monotonic() - began > _LASTING_SECONDS else restarts + 1
            delay = _RESTART.delay(restarts, error)
            _log.error(logs.JOB_RESTARTED, job=code, restarts=restarts, wait_seconds=round(delay, 1), exc_info=error)
            await is_set_within(delay, stop)
        finally:
            watcher.cancel()
            vitals.unwatch(code)


async def until_sink_found(parts: JobParts, where: str, *, vitals: Vitals, stop: asyncio.Event) -> None:
    """Returns when the job's sink answers and is as declared, or after `stop`; until then the process is not ready.

    Raises Misconfigured where it answers and is not.
    """
    code, tries = parts.job.job_code, 0
    while parts.sink is not None and not stop.is_set():
        try:
            await parts.sink.check()
        except Transient as error:
            vitals.wait(code, f"waits for {where}: {error}")
            if tries % _TRIES_TOLD == 0:
                _log.warning(logs.SINK_AWAITED, job=code, sink=where, error=str(error), wait_seconds=_SINK_SECONDS)
            tries += 1
            await is_set_within(_SINK_SECONDS, stop)
        else:
            return


def _is_refused(error: Exception) -> bool:
    return isinstance(error, Misconfigured) and not isinstance(error, Unreachable)


async def is_set_within(seconds: float, event: asyncio.Event) -> bool:
    """Returns as soon as `event` is set, or False after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _when(event: asyncio.Event, action: Callable[[], None]) -> None:
    await event.wait()
    action()
