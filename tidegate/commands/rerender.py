"""`tidegate projections rerender`: the documents of a fold are written again from its states."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, actor_of, examples, print_json, say, settings_of, wait_for
from tidegate.jobs.declaration import Job
from tidegate.jobs.rerendering import RerenderPlan, plan_rerender, rerender
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate projections rerender customer-value                          [dim]# the plan; nothing is changed[/dim]",
    "tidegate projections rerender customer-value --reason 'index lost' --yes",
    "tidegate projections rerender customer-value --failed --reason 'mapping mended' --yes",
)


def rerender_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Code of the fold.")],
    failed: Annotated[bool, typer.Option("--failed", help="Only keys that could not be rendered.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for whoever comes next. Needed with --yes.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this the plan is shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of a fold again from its states, at their versions: after its sink lost some, or a change of
    its render function. Workers do it; folding goes on."""
    loaded = load_app(app)
    plan, marked = wait_for(
        _rerender(settings_of(), loaded, loaded.job(job), only_failed=failed, reason=reason, yes=yes)
    )
    if as_json:
        print_json({"plan": asdict(plan), "marked": marked, "done": yes})
        return
    state = plan.rendering
    typer.echo(
        f"{job}: {plan.to_mark} keys to be rendered again; "
        f"now {state.waiting} wait and {state.failed} could not be rendered"
    )
    if marked is None:
        say("nothing was changed; add --reason '…' --yes to do it")
    else:
        typer.echo(f"{marked} keys are marked; the workers of {job} render them, and 'tidegate status' counts down")


async def _rerender(
    settings: Settings, app: App, job: Job, *, only_failed: bool, reason: str, yes: bool
) -> tuple[RerenderPlan, int | None]:
    """The plan, and how many keys were marked; None if none were to be."""
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        plan = await plan_rerender(connection, app, job, only_failed=only_failed)
        if not yes:
            return plan, None
        return plan, await rerender(connection, await actor_of(settings, connection), app, plan, reason=reason)
