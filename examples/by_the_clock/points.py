from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from tidegate import App, Context, Cron, Page, ScheduledJob, Scope, answer, handle


class Patience(BaseModel):  # what whoever asks for a run may say: --param days=30
    days: int = 365


@dataclass(frozen=True)
class IdleAccounts:  # the query: which accounts come next?
    page: Page


@dataclass(frozen=True)
class ExpirePoints:  # the command that each of them becomes
    customer_id: str
    idle_since: datetime


async def idle_accounts(query: IdleAccounts, ctx: Context[None]) -> Sequence[ExpirePoints]:  # reads
    page = query.page
    idle_since = page.occasion.scheduled_at - timedelta(days=page.occasion.input.days)
    rows = await ctx.db.fetch(
        "SELECT customer_id FROM account WHERE tenant = $1 AND customer_id > $2 AND points > 0 AND used_at < $3 "
        "ORDER BY customer_id LIMIT $4",
        *(page.scope.tenant, page.after or "", idle_since, page.limit),
    )
    return [ExpirePoints(row["customer_id"], idle_since) for row in rows]


async def expire_points(command: ExpirePoints, ctx: Context[None]) -> None:  # once for each account and night
    account = (ctx.scope.tenant, command.customer_id)
    points = await ctx.db.fetchval(
        "SELECT points FROM account WHERE tenant = $1 AND customer_id = $2 AND used_at < $3 FOR UPDATE",
        *(*account, command.idle_since),
    )
    if not points:
        return  # used since the query looked
    await ctx.db.execute("UPDATE account SET points = 0 WHERE tenant = $1 AND customer_id = $2", *account)
    expired = {"customer_id": command.customer_id, "points": points}
    ctx.publish("points.expired", expired, type="points.expired", key=command.customer_id)


def each_account(item: ExpirePoints) -> ExpirePoints:  # None would pass over it
    return item


def customer_of(item: ExpirePoints) -> str:  # its place in the order of the query
    return item.customer_id


expire = ScheduledJob(
    code="expire-points",
    trigger=Cron("0 2 * * *", "Europe/Berlin"),
    scopes=[Scope("acme"), Scope("bolt")],  # a run for each
    query=IdleAccounts,
    command=each_account,
    key=customer_of,
    input=Patience,
    partial_failure="quarantine",
    runbook="docs/expire-points.md",
)
app = App(
    service="loyalty",
    owner="you",
    clock_jobs=[expire],
    handlers=[answer(IdleAccounts, idle_accounts), handle(ExpirePoints, expire_points)],
    migrations=Path(__file__).with_name("migrations"),
)
