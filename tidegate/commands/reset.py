"""`tidegate projections reset`: the index or table of a projection made anew, and filled from its topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from tidegate.app import App
from tidegate.backfilling import BackfillOptions, BackfillStart
from tidegate.commands.backfill import shown_progress, told_backfill
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    say,
    settings_of,
    tell,
    wait_for,
)
from tidegate.commands.signals import run_until_signal
from tidegate.console.resetting import ResetPlan, ResetReport, plan_reset, reset_projection
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate projections reset order-search            [dim]# the plan; nothing is changed[/dim]",
    "tidegate pause order-search --reason 'new mapping'",
    "tidegate projections reset order-search --reason 'new mapping' --yes",
    "tidegate resume order-search",
)


def reset_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Code of the projection.")],
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Though logs have lost their beginnings: some documents do not return.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for the audit and whoever comes next. Needed with --yes.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without it the plan is shown and nothing changes.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop a projection's index or table, make it as declared, and fill it from its topics. For admins; pause it first.

    Readers see it empty, then filling. Killed in between, the same command begins again.
    """
    loaded, settings = load_app(app), settings_of()
    plan = wait_for(_plan(loaded, settings, job))
    if not as_json:
        _print_plan(plan)
    report = _reset(loaded, settings, plan, reason, accept_gap=accept_gap) if yes else None
    if as_json:
        print_json({"plan": _plain(plan), "report": None if report is None else _plain_report(report)})
    elif report is None:
        typer.echo("nothing was changed: add --reason and --yes to do it")
    else:
        tell(_told(report), f"'tidegate resume {job}' lets it go on from where it stood")
    if report is not None and not report.is_done:
        raise typer.Exit(1)


async def _plan(app: App, settings: Settings, code: str) -> ResetPlan:
    await require_schema(settings.postgres_dsn.get_secret_value())
    return await plan_reset(app, settings, app.job(code))


def _reset(app: App, settings: Settings, plan: ResetPlan, reason: str, *, accept_gap: bool) -> ResetReport:
    with shown_progress() as show:
        start = BackfillStart(is_beginning=True)
        options = BackfillOptions(start, accept_gap=accept_gap, on_progress=show, on_wait=say)

        async def work(stop: Any) -> ResetReport:
            async with connect(settings.postgres_dsn.get_secret_value()) as connection:
                actor = await actor_of(settings, connection)
            return await reset_projection(app, settings, plan, options, actor=actor, reason=reason, stop=stop)

        return run_until_signal(work, drain=settings.drain_timeout, late_code=1)


def _print_plan(plan: ResetPlan) -> None:
    topics = ", ".join(sorted({partition.topic for partition in plan.logs}))
    tell(
        f"{plan.job.code}: {plan.job.sink.name!r}, {plan.where}",
        f"{plan.documents} documents are dropped; readers see none of them from then on, and each again as it is read",
        f"{plan.to_read} offsets of {topics} are read again, from the beginning of each log to its end"
        if topics
        else "its workers write the document of each state again",
    )
    tell(*(f"{where} lacks its first {count} offsets: needs --accept-gap" for where, count in plan.gaps.items()))
    tell(*(f"would be refused: {obstacle}" for obstacle in plan.obstacles))


def _told(report: ResetReport) -> str:
    if report.backfill is not None:
        return told_backfill(report.backfill)
    return f"{report.states} states are marked; the workers of the new release render them"


def _plain_report(report: ResetReport) -> dict[str, Any]:
    if report.backfill is None:
        return {"states": report.states}
    return {**asdict(report.backfill), "progress": report.backfill.progress._asdict()}


def _plain(plan: ResetPlan) -> dict[str, Any]:
    return {
        "job": plan.job.code,
        "sink": plan.job.sink.name,
        "documents": plan.documents,
        "to_read": plan.to_read,
        "gaps": dict(plan.gaps),
        "obstacles": list(plan.obstacles),
    }
