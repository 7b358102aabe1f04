"""`tidegate jobs items`, `replay` and `discard`: items of runs that failed, which are dead letters of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from tidegate.app import App
from tidegate.commands.dlq_filters import letter_id
from tidegate.commands.jobs_asking import (
    JobArgument,
    LimitOption,
    MaybeJob,
    code_of,
    connected,
    scope_text,
)
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    print_table,
    settings_of,
    tell,
    wait_for,
)
from tidegate.jobs.clockwork.quarantine import (
    ItemChoice,
    ItemPlan,
    LostItem,
    Replayed,
    discard_items,
    lost_items,
    plan_items,
    replay_items,
)
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.settings import Settings

ITEMS_EXAMPLES = examples("tidegate jobs items", "tidegate jobs items reconcile --json")
REPLAY_EXAMPLES = examples(
    "tidegate jobs replay reconcile --tenant acme --all",
    "tidegate jobs replay reconcile --tenant acme --item 'order-1041' --reason 'the account is open again' --yes",
)
DISCARD_EXAMPLES = examples(
    "tidegate jobs discard reconcile --tenant acme --item 'order-1041' --reason 'was a test order' --yes",
)

TenantOption = Annotated[str, typer.Option(help="Whose items.")]
BrandOption = Annotated[str, typer.Option(help="Of which brand.")]
ItemOption = Annotated[list[str] | None, typer.Option(metavar="ITEM", help="As `jobs items` shows it.")]
LetterOption = Annotated[list[str] | None, typer.Option(metavar="LETTER", help="Its id as a dead letter.")]
AllOption = Annotated[bool, typer.Option("--all", help="All quarantined ones of the tenant and brand.")]
WhyOption = Annotated[
    str, typer.Option("--reason", help="Why, for the audit and whoever comes next. Needed with --yes.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it the plan is shown and nothing changes.")]

_COLUMNS = ["job", "tenant", "item", "is", "since", "run", "error"]


def items_command(
    job: MaybeJob = None, limit: LimitOption = 20, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Show items that failed and were not done since: `failed` ones are tried again by themselves, others not."""
    loaded = load_app(app)
    items = wait_for(_items(settings_of(), loaded.service, code_of(loaded, job), limit))
    if as_json:
        print_json([{**asdict(item), "replay_instruction": item.instruction} for item in items])
    else:
        print_table(_COLUMNS, [_row(item) for item in items], right=["run"])


def replay_command(
    job: JobArgument,
    tenant: TenantOption = "",
    brand: BrandOption = "",
    item: ItemOption = None,
    letter: LetterOption = None,
    all_items: AllOption = False,
    reason: WhyOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have failed items done again, as their job's query answers with them now; nothing else of their runs is."""
    loaded = load_app(app)
    choice = _choice(loaded, job, Scope(tenant, brand), item, letter, is_all=all_items)
    if not yes:
        _show_plan("replay", choice, wait_for(_plan(settings_of(), loaded, choice)), as_json=as_json)
        return
    replayed = wait_for(_replay(settings_of(), loaded, choice, reason))
    if as_json:
        print_json({"job": job, **replayed._asdict()})
    else:
        runs = ", ".join(map(str, replayed.runs)) or "none"
        tell(f"items to be done again: {replayed.items}; runs: {runs}; 'tidegate jobs runs {job}' shows them")


def discard_command(
    job: JobArgument,
    tenant: TenantOption = "",
    brand: BrandOption = "",
    item: ItemOption = None,
    letter: LetterOption = None,
    all_items: AllOption = False,
    reason: WhyOption = "",
    yes: YesOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide that nobody will do failed items: no run of their occurrence tries them again."""
    loaded = load_app(app)
    choice = _choice(loaded, job, Scope(tenant, brand), item, letter, is_all=all_items)
    if not yes:
        _show_plan("discard", choice, wait_for(_plan(settings_of(), loaded, choice)), as_json=as_json)
        return
    count = wait_for(_discard(settings_of(), loaded, choice, reason))
    if as_json:
        print_json({"job": job, "items": count})
    else:
        tell(f"items discarded: {count}")


def _choice(
    app: App, job: str, scope: Scope, items: list[str] | None, letters: list[str] | None, *, is_all: bool
) -> ItemChoice:
    if is_all == bool(items or letters):
        raise Misconfigured("say which: --item ITEM or --letter LETTER, once or more, or --all")
    ids = [letter_id(text) for text in letters or ()]
    return ItemChoice(job=app.clock_job(job), scope=scope, keys=items or (), letters=ids)


def _show_plan(verb: str, choice: ItemChoice, plan: ItemPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"job": choice.job.code, "plan": verb, **plan._asdict()})
        return
    since = "" if plan.first_failed_at is None else f", the first since {plan.first_failed_at:%Y-%m-%d %H:%M:%SZ}"
    tell(f"{verb} of {plan.items} items of {plan.occasions} occasions{since}")
    for reason, count in plan.reasons.items():
        tell(f"  {count} {reason}")
    tell("nothing was changed; add --reason '…' --yes")


async def _items(settings: Settings, service: str, code: str | None, limit: int) -> Sequence[LostItem]:
    async with connected(settings) as connection:
        return await lost_items(connection, service, code=code, limit=limit)


async def _plan(settings: Settings, app: App, choice: ItemChoice) -> ItemPlan:
    async with connected(settings) as connection:
        return await plan_items(connection, app.service, choice)


async def _replay(settings: Settings, app: App, choice: ItemChoice, reason: str) -> Replayed:
    async with connected(settings) as connection:
        actor, now = await actor_of(settings, connection), SystemClock().now()
        return await replay_items(connection, actor, app.service, choice, reason=reason, now=now)


async def _discard(settings: Settings, app: App, choice: ItemChoice, reason: str) -> int:
    async with connected(settings) as connection:
        actor, topic = await actor_of(settings, connection), app.dlq_topic(choice.job.job_code)
        return await discard_items(connection, actor, app.service, choice, reason=reason, topic=topic)


def _row(item: LostItem) -> list[Any]:
    since = f"{item.decided_at:%Y-%m-%d %H:%M:%SZ}"
    where = escape(scope_text(item.tenant, item.brand))
    state = item.outcome if item.replay is None else f"replay by run {item.replay}"
    return [item.code, where, escape(item.key), state, since, item.run, escape(item.error_message or "")]
