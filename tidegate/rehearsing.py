"""`tidegate dlq replay --rehearse`: today's code takes dead letters, and nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from uuid import UUID

from consumers.rehearsal import ONCE, Rehearsal
from consumers.rehearsed import Rehearsed, RehearsedFailure
from dlq.runs import ENDED, Outcome, RunKind
from tidegate.app import App
from tidegate.assembly import replay_hands
from tidegate.jobs.declaration import ConsumerJob, Job, silence_limit_of
from tidegate.jobs.replays import Asked, permit_rehearsal
from tidegate.resources import Resources, open_resources
from tidegate.supervision import is_set_within
from tidegate.worker import open_sink
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.permissions import Actor
from tidegate_kernel.settings import Settings

_PROGRESS_EVERY_SECONDS = 0.2
_MOST_FAILURES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """`on_progress` gets how many letters were come to, of how many; `on_wait` sentences for whoever watches."""

    on_progress: Callable[[int, int], None] = lambda *_: None
    on_wait: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingGroup:
    """Letters and parked events that would fail in the same way. `sample`: the first letter; None: it is parked."""

    reason: str
    fingerprint: str
    error_class: str
    error_message: str
    handler: str
    letters: int
    parked: int
    sample: UUID | None
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalReport:
    """What would become of the letters; the numbers of `passing`, `failing`, `behind` and `not_tried` add up to them.

    `failing` would fail or be refused; `behind` would have to wait for others. Of the events parked behind them
    `parked_passing` and `parked_failing` were come to. `failures` are the largest of `all_failures`.
    """

    job: str
    digest: str
    letters: int
    passing: int
    failing: int
    behind: int
    not_tried: int
    outcomes: dict[str, int]
    parked_passing: int
    parked_failing: int
    failures: Sequence[FailingGroup]
    all_failures: int

    @property
    def is_clean(self) -> bool:
        """Whether everything would pass."""
        return self.passing == self.letters and not self.parked_failing


async def rehearse(
    app: App, settings: Settings, asked: Asked, options: RehearsalOptions, *, actor: Actor, stop: asyncio.Event
) -> RehearsalReport:
    """Returns what a replay of the letters would come to; everything that handlers do is rolled back.

    Raises Misconfigured for a job that declares calls to the outside, Denied, Transient.
    """
    job = app.job(asked.code)
    refuse_outside_calls(app, job)
    async with AsyncExitStack() as opened:
        resources = await opened.enter_async_context(open_resources(app, settings, jobs=1, clock=SystemClock()))
        await permit_rehearsal(resources.pool, actor, asked)
        rehearsal = await _rehearsal(opened, app, job, resources, asked, options)
        watcher = asyncio.create_task(_watch(rehearsal, len(asked.letters), options, stop), name="rehearsal-progress")
        try:
            rehearsed = await rehearsal.run()
        finally:
            watcher.cancel()
    options.on_progress(rehearsed.outcomes.total(), len(asked.letters))
    return _report(asked, rehearsed)


def refuse_outside_calls(app: App, job: Job) -> None:
    """Raises Misconfigured, which says why, if a rehearsal of the job could do what no rollback takes back."""
    if not isinstance(job, ConsumerJob):
        return
    outside = sorted(handler.name for handler in app.handlers_of(job) if not handler.stays_inside)
    if outside or job.needs:
        what = f"handler {outside[0]} calls the outside" if outside else f"it needs {', '.join(job.needs)}"
        raise Misconfigured(
            f"job {job.code!r} cannot be rehearsed: {what}, and no rollback takes that back; replay a letter or two of "
            "each kind instead, with --letter"
        )


async def _rehearsal(
    opened: AsyncExitStack, app: App, job: Job, resources: Resources, asked: Asked, options: RehearsalOptions
) -> Rehearsal:
    sink = await opened.enter_async_context(open_sink(job, resources.settings))
    once: Job = replace(job, retry=ONCE)
    ledger, hands = await replay_hands(app, once, resources, sink=sink, kind=RunKind.REPLAY)
    return Rehearsal(
        hands,
        ledger,
        asked.letters,
        silence_limit=silence_limit_of(job),
        on_wait=lambda error: options.on_wait(f"waiting: {error}"),
    )


async def _watch(rehearsal: Rehearsal, total: int, options: RehearsalOptions, stop: asyncio.Event) -> None:
    while not await is_set_within(_PROGRESS_EVERY_SECONDS, stop):
        options.on_progress(rehearsal.rehearsed.outcomes.total(), total)
    rehearsal.stop()


def _report(asked: Asked, rehearsed: Rehearsed) -> RehearsalReport:
    outcomes = rehearsed.outcomes
    failures = sorted(rehearsed.failures.values(), key=lambda each: (-each.letters, -each.parked, each.place))
    return RehearsalReport(
        job=asked.code,
        digest=asked.digest,
        letters=len(asked.letters),
        passing=sum(outcomes[outcome] for outcome in ENDED),
        failing=outcomes[Outcome.FAILED] + outcomes[Outcome.REFUSED],
        behind=outcomes[Outcome.BEHIND],
        not_tried=outcomes[Outcome.NOT_TRIED],
        outcomes={str(outcome): letters for outcome, letters in outcomes.items() if letters},
        parked_passing=rehearsed.passed,
        parked_failing=rehearsed.failed,
        failures=[_group(failure) for failure in failures[:_MOST_FAILURES]],
        all_failures=len(failures),
    )


def _group(failure: RehearsedFailure) -> FailingGroup:
    return FailingGroup(
        reason=failure.reason,
        fingerprint=failure.cause.fingerprint,
        error_class=failure.cause.error_class,
        error_message=failure.cause.message,
        handler=failure.handler,
        letters=failure.letters,
        parked=failure.parked,
        sample=failure.sample,
        place=failure.place,
    )
