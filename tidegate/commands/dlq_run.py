"""What `tidegate dlq replay` and `discard` have in common: words to a plan, and a plan to a run."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from dlq.runs import RunKind
from tidegate.app import App
from tidegate.commands.dlq_filters import letter_id
from tidegate.commands.dlq_import import plain_import
from tidegate.commands.dlq_run_output import plain_plan, plain_report, shown_progress, told_plan, told_run
from tidegate.commands.dlq_words import How, Words, refuse_contradictions, refuse_what_items_have_not
from tidegate.commands.item_deeds import ItemAsking, decide
from tidegate.commands.loading import load_app
from tidegate.commands.options import actor_of, print_json, say, settings_of, tell, wait_for
from tidegate.commands.readable import counted
from tidegate.console.letters import ItemDetails, LetterDetails, find_letter, read_letter
from tidegate.console.replay_hazards import HazardCode, command_of
from tidegate.console.replay_plan import ReplayPlan, plan_replay
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import Job
from tidegate.jobs.replays import Asked, refuse_taken
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Conflict, Misconfigured
from tidegate_kernel.event import ReplayId
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # with it come the clients of Kafka and all sinks, which only a run needs
    from tidegate.letter_import import ImportPlan
    from tidegate.replaying import ReplayReport

_LEFT = 1


@dataclass(frozen=True, slots=True)
class _Asking:
    """One command: for which application, what, which letters, how."""

    app: App
    settings: Settings
    kind: RunKind
    words: Words
    how: How

    def next_command(self, plan: ReplayPlan) -> str:
        """What does it, to be pasted: the same words, bound to this plan."""
        reason = shlex.quote(self.how.said_reason) if self.how.said_reason else "'…'"
        rate = f" --rate {self.how.rate}" if self.how.rate else ""
        return f"{self.plan_command}{rate} --digest {plan.digest} --reason {reason} --yes"

    @property
    def plan_command(self) -> str:
        """What shows the plan of just these letters."""
        force = " --force" if self.how.is_forced else ""
        return f"{command_of(self.kind)} {shlex.join(self.words.spelled())}{force}"

    def asked(self, plan: ReplayPlan, letters: Sequence[UUID]) -> Asked:
        return Asked(
            code=self.app.job(plan.job).job_code,
            kind=self.kind,
            letters=letters,
            digest=plan.digest,
            reason=self.how.said_reason,
            is_forced=self.how.is_forced,
            where=self.words.for_audit(),
            scopes=plan.scopes,
        )


def go(app: str | None, kind: RunKind, words: Words, how: How) -> None:
    """Shows the plan, or does it. Ends with 1 where something is left of it."""
    refuse_contradictions(words, how)
    asking = _Asking(load_app(app), settings_of(), kind, words, how)
    if how.resume is None and (job := _clock_job(asking)) is not None:
        _decide_items(asking, job)
        return
    if how.is_rehearsal:
        _rehearse(asking)
    elif how.is_sure or how.resume is not None:
        _do(asking)
    elif how.from_topic:
        _show_import(asking)
    else:
        plan = wait_for(_plan(asking))
        command = None if plan.is_empty else asking.next_command(plan)
        if how.as_json:
            print_json({**plain_plan(plan), "is_done": False, "next": command})
        else:
            tell(*told_plan(plan))
            say(f"nothing was changed; to do it: {command}" if command else "there is nothing to be done")


def _clock_job(asking: _Asking) -> ClockJob | None:
    """The job whose items the letters are, if they are any's: a run by a worker does those again."""
    app, words = asking.app, asking.words
    code = words.job
    if code is None and words.letters:
        found = wait_for(_found(asking, letter_id(words.letters[0])))
        code = found.job if isinstance(found, ItemDetails) else None
        return None if code is None else app.clock_job(code)
    is_clocked = any(job.code == code for job in (*app.clock_jobs, *app.upkeep_jobs))
    return app.clock_job(str(code)) if is_clocked else None


async def _found(asking: _Asking, letter: UUID) -> LetterDetails | ItemDetails:
    dsn = asking.settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await find_letter(connection, asking.app.service, letter)


def _decide_items(asking: _Asking, job: ClockJob) -> None:
    words, how = asking.words, asking.how
    refuse_what_items_have_not(job.code, words, how)
    letters = [letter_id(text) for text in words.letters]
    typed = f"{command_of(asking.kind)} {shlex.join(words.spelled())}"
    wanted = letters or words.filter()
    decide(ItemAsking(app=asking.app, job=job, kind=asking.kind, wanted=wanted, typed=typed, how=how))


async def _plan(asking: _Asking) -> ReplayPlan:
    dsn = asking.settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await _planned(asking, connection)


async def _planned(asking: _Asking, connection: Connection) -> ReplayPlan:
    letters = [letter_id(text) for text in asking.words.letters]
    plan = await plan_replay(
        connection,
        asking.app,
        await _job(asking, connection, letters),
        letters or asking.words.filter(),
        kind=asking.kind,
        is_forced=asking.how.is_forced,
        most_replays=asking.settings.max_replays,
    )
    if asking.how.digest not in (None, plan.digest):
        raise Conflict(
            f"the letters are others, or have changed, since the plan {asking.how.digest} was shown: now they are "
            f"{len(plan.letters)} with the digest {plan.digest}; look at the plan again"
        )
    return plan


async def _job(asking: _Asking, connection: Connection, letters: Sequence[UUID]) -> Job:
    app, code = asking.app, asking.words.job
    if code is None and letters:
        code = (await read_letter(connection, app.service, letters[0])).job
    if code is None and len(app.jobs) > 1:
        raise Misconfigured(f"say which job with --job: {', '.join(sorted(job.code for job in app.jobs))}")
    return app.job(code) if code is not None else app.jobs[0]


def _show_import(asking: _Asking) -> None:
    plan = wait_for(_planned_import(asking))
    if asking.how.as_json:
        print_json({"import": plain_import(plan), "is_done": False})
    else:
        letters = sum(plan.letters.values())
        tell(f"topic {plan.topic} tells of {counted(letters, 'letter')}, {plan.known} of which the database has")
    say("nothing was changed; they come in first, and then the replay is planned and run: add --reason '…' --yes")


async def _planned_import(asking: _Asking) -> ImportPlan:
    from tidegate.letter_import import plan_import

    dsn = asking.settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await plan_import(asking.app, asking.settings, asking.app.job(str(asking.words.job)), connection)


def _rehearse(asking: _Asking) -> None:
    from tidegate.commands.dlq_rehearse import rehearse_letters

    rehearse_letters(
        asking.app,
        asking.settings,
        partial(_asked, asking),
        next_command=asking.plan_command,
        as_json=asking.how.as_json,
    )


def _do(asking: _Asking) -> None:
    from tidegate.commands.signals import run_until_signal

    settings = asking.settings
    # Between a bar and the person who watches it only what is wrong is worth a line.
    level = "warning" if sys.stderr.isatty() and settings.log_level == "info" else settings.log_level
    configure_logs(style=settings.log_format, level=level)
    report = run_until_signal(lambda stop: _run(asking, stop), drain=settings.drain_timeout, late_code=_LEFT)
    if report is None:
        if asking.how.as_json:
            print_json({"is_done": True, "run": None})
        return
    if asking.how.as_json:
        print_json(plain_report(report))
    else:
        tell(*told_run(report.run, report.failures))
    if not report.run.is_clean and not report.waits:
        raise typer.Exit(_LEFT)


async def _run(asking: _Asking, stop: asyncio.Event) -> ReplayReport | None:
    """None where there was nothing to be done."""
    from tidegate.replaying import ReplayOptions, resume_replay, run_replay

    app, settings, how = asking.app, asking.settings, asking.how
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    with shown_progress(asking.kind) as show:
        options = ReplayOptions(rate=how.rate, on_progress=show, on_wait=say)
        async with connect(dsn) as connection:
            actor = await actor_of(settings, connection)
            asked = None if how.resume is not None else await _asked(asking, connection, actor)
        if how.resume is not None:
            run, reason = ReplayId(how.resume), how.said_reason
            return await resume_replay(
                app, settings, run, options, kind=asking.kind, actor=actor, stop=stop, reason=reason
            )
        if asked is None:
            say("there is nothing to be done")
            return None
        return await run_replay(app, settings, asked, options, actor=actor, stop=stop)


async def _asked(asking: _Asking, connection: Connection, actor: Actor) -> Asked | None:
    """Returns what to begin; None where nothing is left of it. Raises Conflict where others have all of it."""
    if asking.how.from_topic:
        await _import(asking, connection, actor)
    plan = await _planned(asking, connection)
    for hazard in plan.hazards:
        say(hazard.sentence)
    # A run without letters lets loose events go on; whoever named letters wants those and nothing else.
    if plan.letters or not (plan.is_empty or asking.words.letters):
        return asking.asked(plan, plan.letters)
    why = next((h for h in plan.hazards if h.code in (HazardCode.REPLAYING, HazardCode.QUARANTINED)), None)
    if why is not None:
        named = [letter_id(text) for text in asking.words.letters]
        await refuse_taken(connection, actor, asking.asked(plan, named), f"{why.sentence}; {why.remedy}")
    return None


async def _import(asking: _Asking, connection: Connection, actor: Actor) -> None:
    from tidegate.letter_import import import_letters

    job = asking.app.job(str(asking.words.job))
    report = await import_letters(asking.app, asking.settings, job, connection, actor=actor)
    say(f"{counted(report.total, 'letter')} came in from {report.plan.topic}")
