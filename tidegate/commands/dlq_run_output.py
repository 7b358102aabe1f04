"""What is printed of plans, runs and their reports: lines, a table, a bar, and plain values for JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dlq.runs import FailureGroup, Outcome, Run, RunKind, RunState
from tidegate.commands.options import print_table, say
from tidegate.commands.readable import counted, printable
from tidegate.console.replay_plan import ReplayPlan

if TYPE_CHECKING:
    from tidegate.replaying import ReplayProgress, ReplayReport

_MOST_GROUPS_TOLD = 10
_WORDS = {
    Outcome.RESOLVED: "resolved",
    Outcome.ALREADY_PROCESSED: "already processed",
    Outcome.SUPERSEDED: "superseded",
    Outcome.DISCARDED: "discarded",
    Outcome.FAILED: "failed again",
    Outcome.REFUSED: "refused: without a payload, or of a topic that the job reads no more",
    Outcome.BEHIND: "left behind an earlier letter of their key",
    Outcome.NOT_TRIED: "not tried",
}


def told_plan(plan: ReplayPlan) -> Iterator[str]:
    """Lines about a plan, without anything of the payload."""
    yield f"{plan.kind} of {counted(len(plan.letters), 'letter')} of job {plan.job!r}, plan {plan.digest}"
    if plan.letters:
        span = f"from {_time(plan.first_failed_at)} to {_time(plan.last_failed_at)}"
        yield f"  {counted(plan.keys, 'key')}; failed {span}"
    for group in plan.groups[:_MOST_GROUPS_TOLD]:
        where = group.handler or "no handler"
        yield (
            f"  {counted(group.letters, 'letter')} {group.reason} {group.fingerprint} in {where}: "
            f"{group.error_class}: {group.error_message} (as {group.sample})"
        )
    if plan.all_groups > _MOST_GROUPS_TOLD:
        yield f"  and {counted(plan.all_groups - _MOST_GROUPS_TOLD, 'more kind')} of failures"
    yield from _told_parked(plan)
    for hazard in plan.hazards:
        yield f"! {hazard.sentence}{f'; {hazard.remedy}' if hazard.remedy else ''}"


def _told_parked(plan: ReplayPlan) -> Iterator[str]:
    for event in plan.parked_first:
        yield f"  frees event {event.event_id or 'without id'} at {event.topic}:{event.partition}:{event.offset}"
    more = plan.parked - len(plan.parked_first)
    if more > 0:
        yield f"  frees {counted(more, 'more event')}"


def plain_plan(plan: ReplayPlan) -> dict[str, Any]:
    """A plan for JSON."""
    scopes = [{"tenant": scope.tenant, "brand": scope.brand} for scope in plan.scopes]
    told: dict[str, Any] = asdict(plan)
    return told | {"scopes": scopes}


def told_run(run: Run, failures: Sequence[FailureGroup]) -> Iterator[str]:
    """Lines about a run, and what to type next; the numbers add up to its letters."""
    yield f"run {run.id}, {run.kind} of {counted(run.letters, 'letter')} of job {run.job!r}: {state_of(run)}"
    for outcome, letters in _in_order(run.outcomes):
        yield f"  {letters:,} {_WORDS[outcome]}"
    if run.undecided:
        yield f"  {run.undecided:,} undecided"
    if run.parked:
        yield f"  {counted(run.parked, 'parked event')} taken up{_told_failed_events(run)}"
    for each in failures:
        yield (
            f"  {each.letters:,} failed with {each.reason} {each.fingerprint}: {each.error_class}: "
            f"{each.error_message} (as {each.sample}: 'tidegate dlq show {each.sample}')"
        )
    yield from (f"next: {command}" for command in next_commands(run))


def _told_failed_events(run: Run) -> str:
    if not run.failed_events:
        return ""
    dead = "is a dead letter" if run.failed_events == 1 else "are dead letters"
    return f", of which {run.failed_events:,} failed and {dead} now: 'tidegate dlq list --job {run.job}'"


def told_origin(run: Run) -> Iterator[str]:
    """Who asked for a run, who agreed, who wants it to end."""
    yield f"  asked for by {run.asked_by} at {_time(run.created_at)}, plan {run.digest}: {run.reason}"
    if run.is_forced:
        yield "  with --force"
    if run.approved_by:
        yield f"  approved by {run.approved_by}"
    if run.stop_asked_by:
        yield f"  {run.stop_asked_by} asked it to stop"
    if run.holder:
        yield f"  in the hands of {run.holder}"


def state_of(run: Run) -> str:
    """The state for a person."""
    match run.state:
        case RunState.WAITING if run.approved_by:
            return f"approved by {run.approved_by}, not begun"
        case RunState.WAITING:
            return "waits for a second person"
        case RunState.RUNNING if run.is_stalled:
            return "stalled: its runner is gone"
        case _:
            return str(run.state)


def next_commands(run: Run) -> Iterator[str]:
    """What there is to be done about a run."""
    if run.state is RunState.WAITING and not run.approved_by:
        yield f"tidegate dlq approve {run.id} --reason '…'"
    if run.state is not RunState.RUNNING or run.is_stalled:
        if run.left:
            yield f"tidegate dlq {run.kind} --resume {run.id}"
    elif not run.stop_asked_by:
        yield f"tidegate dlq stop {run.id} --reason '…'"


def plain_run(run: Run, failures: Sequence[FailureGroup] | None = None) -> dict[str, Any]:
    """A run for JSON; `outcomes` and `undecided` add up to `letters`."""
    outcomes = {str(outcome): letters for outcome, letters in _in_order(run.outcomes)}
    told = asdict(run) | {"outcomes": outcomes, "undecided": run.undecided, "left": run.left}
    more = {} if failures is None else {"failures": [each._asdict() for each in failures]}
    return told | more | {"next": list(next_commands(run))}


def plain_report(report: ReplayReport) -> dict[str, Any]:
    """A report for JSON."""
    return {"is_done": report.run.is_clean, "run": plain_run(report.run, report.failures)}


def print_runs(runs: Sequence[Run]) -> None:
    """Runs go to standard output as a table."""
    columns = ["run", "job", "kind", "state", "letters", "what became of them", "parked", "asked by", "at", "reason"]
    print_table(columns, [_cells(run) for run in runs], right=["run", "letters", "parked"])


def _cells(run: Run) -> list[object]:
    from rich.markup import escape

    became = ", ".join(f"{letters} {outcome}" for outcome, letters in _in_order(run.outcomes))
    if run.undecided:
        became = f"{became}, {run.undecided} undecided".removeprefix(", ")
    texts = [run.job, run.kind, state_of(run)]
    told = [escape(printable(str(text))) for text in (run.asked_by, _time(run.created_at), run.reason)]
    return [run.id, *map(escape, texts), run.letters, became, run.parked, *told]


@contextmanager
def shown_progress(kind: RunKind) -> Iterator[Callable[[ReplayProgress], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    if not sys.stderr.isatty():
        yield _Lines(kind).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(str(kind), total=None)

        def show(progress: ReplayProgress) -> None:
            behind = f"{kind}, {progress.parked} parked events" if progress.parked else str(kind)
            bar.update(task, completed=progress.letters, total=progress.total, description=behind)

        yield show


class Tenths:
    """How far something is, in steps of which each is worth a line."""

    def __init__(self, told: int = -1) -> None:
        self._told = told

    def is_new(self, done: int, total: int) -> bool:
        """Whether another tenth is done since it was asked last, or since `told`."""
        before, self._told = self._told, max(self._told, 10 * done // total if total else 10)
        return self._told > before


class _Lines:
    def __init__(self, kind: RunKind) -> None:
        self._kind, self._tenths = kind, Tenths()

    def show(self, progress: ReplayProgress) -> None:
        if self._tenths.is_new(progress.letters, progress.total):
            behind = f", {progress.parked} parked events" if progress.parked else ""
            say(f"{self._kind}: {progress.letters} of {progress.total} letters{behind}")


def _in_order(outcomes: Mapping[Outcome, int]) -> Iterator[tuple[Outcome, int]]:
    return ((outcome, outcomes[outcome]) for outcome in Outcome if outcomes.get(outcome))


def _time(at: datetime | None) -> str:
    return "never" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
