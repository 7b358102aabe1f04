"""A workshop whose orders can be closed: they fail, and are dead letters of the job; and what is done about those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from consumers.failure import RetryPolicy
from dlq.envelope import MAX_HEADERS_BYTES
from dlq.forgetting.upkeep import LetterUpkeep
from dlq.runs import RunKind
from tests.integration.clockwork import Schedulers, Workshop, minutely
from tidegate import Context, Rejected
from tidegate.console.item_plan import Chosen, ItemPlan, plan_items
from tidegate.jobs.clockwork.declaration import ScheduledJob
from tidegate.jobs.clockwork.quarantine import ItemChoice, LostItem, Replayed, lost_items, replay_items
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

ALICE, BOSS = Actor("alice", Role.OPERATOR), Actor("boss", Role.ADMIN)
TOPIC = "tests.check.dlq"
QUICK = RetryPolicy(attempts=3, unexpected_attempts=2, first_delay=timedelta(milliseconds=1))


class Closed:
    """Orders that cannot be checked, until they are taken out."""

    def __init__(self, *orders: str) -> None:
        self.orders = set(orders)

    async def __call__(self, order: str, ctx: Context[None]) -> None:
        if order in self.orders:
            raise Rejected("closed account")
        ctx.publish("checked", {"order": order}, key=order)


def quarantining(**fields: Any) -> ScheduledJob:
    return minutely(**{"partial_failure": "quarantine", "retry": QUICK} | fields)


async def failed(shop: Workshop, job: ScheduledJob) -> tuple[Scheduler, ClaimedRun]:
    """A scheduler, after the first run, whose orders are done but for those that are closed."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    return scheduler, await worked(shop, job, scheduler)


async def worked(shop: Workshop, job: ScheduledJob, scheduler: Scheduler) -> ClaimedRun:
    """The run of the next minute, worked off."""
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    return await work_next(shop, job, scheduler)


async def work_next(shop: Workshop, job: ScheduledJob, scheduler: Scheduler) -> ClaimedRun:
    (run,) = await scheduler.claim(1)
    assert await work_off(shop.hands(job), run) is RunState.DONE
    return run


async def asked(shop: Workshop, choice: ItemChoice, actor: Actor = ALICE, reason: str = "it is open again") -> Replayed:
    return await replay_items(shop.pool, actor, "tests", choice, reason=reason, now=shop.clock.now())


async def planned(shop: Workshop, choice: ItemChoice, *, most_replays: int = 5) -> ItemPlan:
    async with shop.pool.acquire() as connection:
        return await plan_items(
            connection, "tests", Chosen([choice], {}), job="check", kind=RunKind.REPLAY, most_replays=most_replays
        )


async def lost(shop: Workshop) -> Sequence[LostItem]:
    async with shop.pool.acquire() as connection:
        return await lost_items(connection, "tests", code=None, limit=10)


async def letters_leave(pool: Pool) -> None:
    """A round of the letters' own upkeep, by the policy of 90 days."""
    upkeep = LetterUpkeep(pool, SystemClock(), service="tests", kept=timedelta(days=90), metrics=Metrics())
    await upkeep.round()


async def letters(pool: Pool) -> list[Mapping[str, str]]:
    """What the DLQ topic will be told, in order: our headers, with the record's key."""
    rows = await pool.fetch(
        "SELECT key, value, header_names, header_values FROM tidegate.outbox WHERE kind = 'dead_letter' ORDER BY id"
    )
    assert all(row["value"] is None for row in rows)
    return [_headers(row["key"], row["header_names"], row["header_values"]) for row in rows]


def _headers(key: bytes | None, names: Sequence[bytes], values: Sequence[bytes]) -> Mapping[str, str]:
    assert sum(map(len, [*names, *values])) <= MAX_HEADERS_BYTES
    told = {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}
    return {"key": (key or b"").decode()} | {name.removeprefix("tg-dlq-"): text for name, text in told.items()}


async def audited(pool: Pool) -> list[tuple[Any, ...]]:
    rows = await pool.fetch("SELECT actor, action, target, reason, tenant, outcome FROM tidegate.audit ORDER BY seq")
    return [tuple(row) for row in rows]
