"""A small service that removes payments of more than a hundred cents, two at a time."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tidegate import AcrossScopes, App, Context, Cron, MaintenanceJob, Page, answer, handle_batch

PREFIX = os.environ.get("SMALL_PREFIX", "small")


@dataclass(frozen=True)
class LargePayments:
    page: Page


@dataclass(frozen=True)
class Remove:
    id: str


async def large_payments(query: LargePayments, ctx: Context[None]) -> list[str]:
    found = "SELECT id FROM payment WHERE cents > 100 AND id > $1 ORDER BY id LIMIT $2"
    return [row["id"] for row in await ctx.db.fetch(found, query.page.after or "", query.page.limit)]


async def remove(commands: Sequence[Remove], ctx: Context[None]) -> None:
    await ctx.db.execute("DELETE FROM payment WHERE id = ANY($1)", [command.id for command in commands])


large = MaintenanceJob(
    code="large-payments",
    trigger=Cron("0 3 * * *", "UTC"),
    retention=timedelta(days=30),
    is_sensitive=False,
    query=LargePayments,
    command=Remove,
    key=str,
    batch_size=2,
    scopes=AcrossScopes("payments here have no tenant"),
    runbook="docs/runbooks/large-payments.md",
)
app = App(
    service=f"{PREFIX}-cleaning",
    owner="payments-team",
    jobs=[],
    clock_jobs=[large],
    handlers=[answer(LargePayments, large_payments), handle_batch(Remove, remove)],
)
