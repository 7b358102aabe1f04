"""`tidegate jobs items` and `release`: items of runs that failed, and letting runs try them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from tidegate.app import App
from tidegate.commands.jobs_asking import (
    JobArgument,
    LimitOption,
    MaybeJob,
    ReasonOption,
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
from tidegate.jobs.clockwork.quarantine import LostItem, Release, lost_items, release_items
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.settings import Settings

ITEMS_EXAMPLES = examples("tidegate jobs items", "tidegate jobs items reconcile --json")
RELEASE_EXAMPLES = examples(
    "tidegate jobs release reconcile --tenant acme --all --reason 'the account is open again'",
    "tidegate jobs release reconcile --tenant acme --item 'order-1041' --reason 'mended'",
)

_COLUMNS = ["job", "tenant", "item", "is", "since", "run", "error"]


def items_command(
    job: MaybeJob = None, limit: LimitOption = 20, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Show items that failed and were not done since: `failed` ones are tried again by themselves, others not."""
    loaded = load_app(app)
    items = wait_for(_items(settings_of(), loaded.service, code_of(loaded, job), limit))
    if as_json:
        print_json([asdict(item) for item in items])
    else:
        print_table(_COLUMNS, [_row(item) for item in items], right=["run"])


def release_command(
    job: JobArgument,
    tenant: Annotated[str, typer.Option(help="Whose items.")] = "",
    brand: Annotated[str, typer.Option(help="Of which brand.")] = "",
    item: Annotated[list[str] | None, typer.Option(metavar="ITEM", help="As `jobs items` shows it.")] = None,
    all_items: Annotated[bool, typer.Option("--all", help="All quarantined ones of the tenant and brand.")] = False,
    reason: ReasonOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the next run that meets quarantined items try them again."""
    if all_items == bool(item):
        raise Misconfigured("say which: --item ITEM, once or more, or --all")
    loaded = load_app(app)
    release = Release(job=loaded.clock_job(job), scope=Scope(tenant, brand), keys=item or None, reason=reason)
    count = wait_for(_release(settings_of(), loaded, release))
    if as_json:
        print_json({"job": job, "items": count})
    else:
        tell(f"items released: {count}; the next run of job {job!r} that meets them tries them again")


async def _items(settings: Settings, service: str, code: str | None, limit: int) -> Sequence[LostItem]:
    async with connected(settings) as connection:
        return await lost_items(connection, service, code=code, limit=limit)


async def _release(settings: Settings, app: App, release: Release) -> int:
    async with connected(settings) as connection:
        return await release_items(connection, await actor_of(settings, connection), app.service, release)


def _row(item: LostItem) -> list[Any]:
    since = f"{item.decided_at:%Y-%m-%d %H:%M:%SZ}"
    where = escape(scope_text(item.tenant, item.brand))
    return [item.code, where, escape(item.key), item.outcome, since, item.run, escape(item.error_message or "")]
