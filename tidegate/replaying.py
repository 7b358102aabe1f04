"""`tidegate dlq replay` and `discard`: begin or resume a run over dead letters, work it off, report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from consumers.intents import Intents
from consumers.ledger import Ledger
from consumers.replay import Replay
from consumers.replay_hands import Hands
from consumers.replay_verdicts import Taken, Verdicts
from dlq.runs import FailureGroup, Hold, Outcome, Run, RunKind, RunState, failures_of, read_run
from tidegate.app import App
from tidegate.assembly import replay_hands
from tidegate.jobs.declaration import Job, silence_limit_of
from tidegate.jobs.replays import Asked, begin, find_run, refuse_asked, refuse_resuming, resume
from tidegate.jobs.selection import part_of
from tidegate.replay_lease import leased, left_resumable
from tidegate.resources import Resources, open_resources
from tidegate.supervision import is_set_within
from tidegate.worker import open_sink
from tidegate_kernel import logs
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.event import ReplayId
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

_log = structlog.get_logger(__name__)

_PROGRESS_EVERY_SECONDS = 0.2


class ReplayProgress(NamedTuple):
    """Letters of which something became in this process, of how many; and events that were parked behind them."""

    letters: int
    total: int
    parked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a run is worked off. `rate`: letters and parked events a second; None: as the settings say.

    `on_wait` gets sentences for whoever watches.
    """

    rate: float | None = None
    on_progress: Callable[[ReplayProgress], None] = lambda _: None
    on_wait: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A run as it stands after this process has worked on it, or has only asked for it (`run.state` is waiting)."""

    run: Run
    failures: Sequence[FailureGroup]

    @property
    def waits(self) -> bool:
        """Whether a second person has to agree first."""
        return self.run.state is RunState.WAITING


async def run_replay(
    app: App, settings: Settings, asked: Asked, options: ReplayOptions, *, actor: Actor, stop: asyncio.Event
) -> ReplayReport:
    """The letters are a run, which is worked off until its end or `stop`; or it waits for a second person.

    Raises Denied, AlreadyRunning where one of the letters is another run's or decided by now, LeaseLost where another
    runner has taken the run over, Misconfigured, Transient.
    """
    async with _Opened.of(app, settings, asked.code) as opened:
        await refuse_asked(opened.resources.pool, actor, asked)
        ledger, hands = await opened.hands(asked.kind)
        begun = await begin(
            opened.resources.pool,
            actor,
            asked,
            job=ledger.origin.job,
            holder=opened.resources.owner,
            approval_above=settings.replay_approval_above,
        )
        if begun.held is None:
            return await opened.report(begun.run)
        return await opened.work_off(begun.held, ledger, hands, options, stop=stop)


async def resume_replay(
    app: App,
    settings: Settings,
    run: ReplayId,
    options: ReplayOptions,
    *,
    kind: RunKind,
    actor: Actor,
    stop: asyncio.Event,
    reason: str = "",
) -> ReplayReport:
    """What is left of the run is worked off until its end or `stop`; one that was approved is begun.

    Raises Denied, AlreadyRunning while its runner lives, Misconfigured for a run of another kind, of which nothing is
    left or that waits for a second person, LeaseLost, Transient.
    """
    async with connect(settings.postgres_dsn.get_secret_value()) as connection:
        found = await find_run(connection, app.service, run)
    if found.kind is not kind:
        raise Misconfigured(f"run {run} is a {found.kind}: 'tidegate dlq {found.kind} --resume {run}'")
    async with _Opened.of(app, settings, found.code) as opened:
        await refuse_resuming(opened.resources.pool, actor, found, reason=reason)
        ledger, hands = await opened.hands(kind)
        held = await resume(opened.resources.pool, actor, found, holder=opened.resources.owner, reason=reason)
        return await opened.work_off(held, ledger, hands, options, stop=stop)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A job and what its letters are handled with, open."""

    app: App
    job: Job
    resources: Resources
    stack: AsyncExitStack

    @classmethod
    @asynccontextmanager
    async def of(cls, app: App, settings: Settings, code: str) -> AsyncIterator[_Opened]:
        job = app.job(code)
        async with AsyncExitStack() as stack:
            resources = await stack.enter_async_context(open_resources(app, settings, jobs=1, clock=SystemClock()))
            yield cls(app, job, resources, stack)

    async def hands(self, kind: RunKind) -> tuple[Ledger, Hands]:
        sink = await self.stack.enter_async_context(open_sink(self.job, self.resources.settings))
        return await replay_hands(self.app, self.job, self.resources, sink=sink, kind=kind)

    async def work_off(
        self, held: Hold, ledger: Ledger, hands: Hands, options: ReplayOptions, *, stop: asyncio.Event
    ) -> ReplayReport:
        async with left_resumable(ledger, held):
            await _tell_pauses(self.job, self.resources, held, options)
            run = await self._read(held.run)
            replay = self._replay(run, held, ledger, hands, options)
            _log.info(logs.REPLAY_STARTED, job=self.job.code, run=run.id, kind=run.kind, letters=run.undecided)
            async with _watched(replay, run.undecided, options, stop), leased(ledger, held, replay):
                is_done = await replay.run()
        report = await self.report(held.run)
        _log.info(logs.REPLAY_FINISHED, job=self.job.code, run=run.id, done=is_done, **_plain(report.run.outcomes))
        return report

    async def report(self, run: ReplayId) -> ReplayReport:
        async with self.resources.pool.acquire(timeout=10) as connection:
            failures = await failures_of(connection, run)
        return ReplayReport(run=await self._read(run), failures=failures)

    async def _read(self, run: ReplayId) -> Run:
        async with self.resources.pool.acquire(timeout=10) as connection:
            return await read_run(connection, self.app.service, run)

    def _replay(self, run: Run, held: Hold, ledger: Ledger, hands: Hands, options: ReplayOptions) -> Replay:
        settings, code = self.resources.settings, self.job.code
        counter = self.resources.metrics.replayed_letters

        def note(taken: Taken) -> None:
            counts = Counter(taken.outcomes.values())
            for outcome, letters in counts.items():
                counter.labels(code, outcome).inc(letters)
            _log.info(logs.REPLAY_BATCH, job=code, run=run.id, parked=taken.parked, **_plain(counts))

        def wait(error: Transient) -> None:
            _log.warning(logs.REPLAY_HELD_BACK, job=code, run=run.id, error=str(error))
            options.on_wait(f"waiting: {error}")

        return Replay(
            hands,
            Verdicts(ledger, held, settings.max_replays, run.asked_by, run.reason, silence_limit_of(self.job)),
            policy=self.job.retry,
            clock=self.resources.clock,
            rate=options.rate or settings.replay_rate,
            on_wait=wait,
            on_taken=note,
        )


async def _tell_pauses(job: Job, resources: Resources, held: Hold, options: ReplayOptions) -> None:
    """A replay in a paused job is a decision of its own; whoever made it is told what it passes by."""
    intents = Intents(resources.pool, resources.clock, job=held.job)
    await intents.read()
    for intent in intents.standing():
        options.on_wait(
            f"job {job.code!r}: {part_of(intent)} is {intent.sentence()}. "
            "That holds back the live consumer alone: this run goes on"
        )


@asynccontextmanager
async def _watched(replay: Replay, total: int, options: ReplayOptions, stop: asyncio.Event) -> AsyncIterator[None]:
    """Inside, progress is told and a stop passed on; the last word is told at the end."""

    def tell() -> None:
        tally = replay.tally
        options.on_progress(ReplayProgress(tally.outcomes.total(), total, tally.parked))

    async def watch() -> None:
        while not await is_set_within(_PROGRESS_EVERY_SECONDS, stop):
            tell()
        replay.stop()

    watcher = asyncio.create_task(watch(), name="replay-progress")
    try:
        yield
    finally:
        watcher.cancel()
        tell()


def _plain(outcomes: Mapping[Outcome, int]) -> dict[str, int]:
    return {str(outcome): letters for outcome, letters in outcomes.items()}
