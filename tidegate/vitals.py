"""Whether this process is alive and whether it may serve, as its probes tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consumers.loop import ConsumerLoop
from consumers.ownership import Hold
from consumers.watchdog import STALLED_SECONDS
from tidegate.assembly import JobParts
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobCode

# A batch takes milliseconds to seconds and a handler is cut off long before this; a loop silent for longer hangs.
_SILENCE_SECONDS = 120.0
# Sought anew at first, read by a new client after STALLED_SECONDS: a loop that still holds it long after that hangs.
_HOPELESS_SECONDS = 2 * STALLED_SECONDS


class Vitals:
    """Watches the loops of a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loops: dict[JobCode, ConsumerLoop] = {}
        self._parts: dict[JobCode, JobParts] = {}
        self._missing: dict[JobCode, str] = {}
        self._clock_signs: list[Callable[[], float]] = []

    def watch_clock(self, last_sign: Callable[[], float]) -> None:
        """`last_sign` tells when a scheduler of this process last looked for what is due, by the monotonic clock."""
        self._clock_signs.append(last_sign)

    def watch(self, parts: JobParts, loop: ConsumerLoop) -> None:
        """`loop` is the running consumer of the job."""
        code = parts.job.job_code
        self._loops[code], self._parts[code] = loop, parts
        self._missing.pop(code, None)

    def unwatch(self, code: JobCode) -> None:
        """The job's loop has ended; until another one is watched the process is not ready."""
        self._loops.pop(code, None)
        self.wait(code, "its consumer is being started again")

    def wait(self, code: JobCode, why: str) -> None:
        """The job's loop does not run yet; the process is not ready."""
        self._missing[code] = why

    def live(self) -> Sequence[str]:
        """Why this process should be killed; empty while every loop makes progress or waits on purpose."""
        now = self._clock.monotonic()
        silences = {code: now - self._last_sign(code, loop) for code, loop in self._loops.items()}
        silent = [
            f"job {code!r}: a lane has been silent for {silence:.0f} s"
            for code, silence in silences.items()
            if silence > _SILENCE_SECONDS
        ]
        oldest_sign = min((sign() for sign in self._clock_signs), default=now)
        if (silence := now - oldest_sign) > _SILENCE_SECONDS:
            silent.append(f"jobs by the clock: their scheduler has been silent for {silence:.0f} s")
        return silent + [
            f"job {code!r}: {held.partition} is behind and not fetched"
            for code, loop in self._loops.items()
            for held in loop.holdings.all()
            if held.stalled_since is not None and now - held.stalled_since > _HOPELESS_SECONDS
        ]

    def ready(self) -> Sequence[str]:
        """Why this process is not doing its work now; empty when every job has joined and no partition is stuck."""
        problems = [f"job {code!r}: {why}" for code, why in sorted(self._missing.items())]
        for code, loop in self._loops.items():
            if loop.source is None:
                problems.append(f"job {code!r}: has not joined its group yet")
            problems += (
                f"job {code!r}: {name} does not answer since {since:%H:%M:%S} UTC"
                for name, since in self._parts[code].outages.open.items()
            )
            problems += (
                f"job {code!r}: {held.partition} is blocked: {held.blocked}"
                for held in loop.holdings.all()
                if held.blocked is not None
            )
            problems += (
                f"job {code!r}: {held.partition} is {held.holds[Hold.FLOOD]}"
                for held in loop.holdings.all()
                if Hold.FLOOD in held.holds
            )
            problems += (
                f"job {code!r}: {held.partition.topic}:{held.partition.partition} rests: {held.holds[Hold.BACKLOG]}"
                for held in loop.holdings.all()
                if Hold.BACKLOG in held.holds
            )
            problems += (
                f"job {code!r}: {held.partition} waits to be tried again"
                for held in loop.holdings.all()
                if held.waiting is not None
            )
        return problems

    def _last_sign(self, code: JobCode, loop: ConsumerLoop) -> float:
        return max(loop.last_beat, self._parts[code].last_progress())
