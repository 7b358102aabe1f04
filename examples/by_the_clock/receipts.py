from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tidegate import App, Context, Cron, MaintenanceJob, Page, Scope, answer, handle_batch


@dataclass(frozen=True)
class OldReceipts:
    page: Page


@dataclass(frozen=True)
class RemoveReceipt:
    id: int


async def old_receipts(query: OldReceipts, ctx: Context[None]) -> Sequence[RemoveReceipt]:
    page = query.page
    rows = await ctx.db.fetch(
        "SELECT id FROM receipt WHERE tenant = $1 AND id > $2 AND made_at < $3 ORDER BY id LIMIT $4",
        *(page.scope.tenant, int(page.after or 0), page.occasion.expired_before, page.limit),
    )
    return [RemoveReceipt(row["id"]) for row in rows]


async def remove_receipts(chunk: Sequence[RemoveReceipt], ctx: Context[None]) -> None:  # all in one transaction
    ids = [each.id for each in chunk]
    await ctx.db.execute("DELETE FROM receipt WHERE tenant = $1 AND id = ANY($2)", ctx.scope.tenant, ids)


def each_receipt(item: RemoveReceipt) -> RemoveReceipt:
    return item


def number_of(item: RemoveReceipt) -> str:
    return str(item.id)


receipts = MaintenanceJob(
    code="old-receipts",
    trigger=Cron("30 3 * * *", "Europe/Berlin"),
    scopes=[Scope("acme"), Scope("bolt")],
    retention=timedelta(days=90),
    is_sensitive=True,  # each chunk that removed something has a row in the audit
    query=OldReceipts,
    command=each_receipt,
    key=number_of,
    batch_size=500,
    runbook="docs/old-receipts.md",
)
app = App(
    service="loyalty",
    owner="you",
    clock_jobs=[receipts],
    handlers=[answer(OldReceipts, old_receipts), handle_batch(RemoveReceipt, remove_receipts)],
    migrations=Path(__file__).with_name("migrations"),
)
