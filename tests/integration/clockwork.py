"""Jobs by the clock for tests: a clock that stands until it is moved, declarations, and a look into the tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from consumers.judging import Judge
from dlq.states import MOST_REPLAYS
from tidegate import Context, Handler, handle
from tidegate.jobs.clockwork.declaration import ClockJob, Page, ScheduledJob
from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate.jobs.clockwork.letters import LetterHome
from tidegate.jobs.clockwork.runs import LEASE_TTL, Found
from tidegate.jobs.clockwork.schedule import Cron
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.units import OUTBOX_LIMIT, RunHands
from tidegate.jobs.handlers import answer
from tidegate.jobs.mediator import Mediator
from tidegate_kernel.event import Scope
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ACME, ZEBRA = Scope("acme"), Scope("zebra")


@dataclass
class StandingClock:
    """Wall time moves only by hand; durations and waits are real."""

    at: datetime = NOON

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def move(self, **by: float) -> None:
        self.at += timedelta(**by)


@dataclass(frozen=True)
class Orders:
    """A query for a page of orders."""

    page: Page


@dataclass(frozen=True)
class Check:
    """A command about one order."""

    order: str


def minutely(**fields: Any) -> ScheduledJob:
    """A job that is due every minute for acme."""
    declared: dict[str, Any] = {
        "code": "check",
        "trigger": Cron("* * * * *", "UTC"),
        "query": Orders,
        "command": Check,
        "key": str,
        "scopes": [ACME],
        "runbook": "-",
        "partial_failure": "stop",
    }
    return ScheduledJob(**declared | fields)


@dataclass
class Schedulers:
    """Processes that schedule the same jobs on one database, by one clock."""

    pool: Pool
    clock: StandingClock = field(default_factory=StandingClock)

    async def start(
        self, *jobs: ClockJob, holder: str = "one", pool: Pool | None = None, ttl: timedelta = LEASE_TTL
    ) -> Scheduler:
        scheduler = Scheduler(pool or self.pool, self.clock, service="tests", holder=holder, ttl=ttl)
        await scheduler.begin(jobs)
        return scheduler

    async def runs(self, columns: str = "scheduled_at, state, missed") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.pool.fetch(f"SELECT {columns} FROM tidegate.job_run ORDER BY id")]

    async def states(self) -> list[str]:
        return [str(state) for (state,) in await self.runs("state")]


async def forget_lease(pool: Pool, *, tenant: str = "acme") -> None:
    """As if the time to live of a scope's leases had passed."""
    await pool.execute("UPDATE tidegate.lease SET expires_at = now() WHERE name LIKE '%/' || $1 || '/%'", tenant)


def tenants(count: int) -> Sequence[Scope]:
    return [Scope(f"t{number:05}") for number in range(count)]


class _Looked(Scheduler):
    """Notes when it looks."""

    looks: list[datetime]

    async def look(self) -> Found:
        found = await super().look()
        self.looks.append(found.now)
        return found


@dataclass
class Workshop:
    """Everything that runs of one job are worked off with, on a table of orders by tenant.

    `on_order` is what the handler does before it notes the order in `effect`, `on_page` what the query does first.
    `pages`: behind which orders pages were asked for. `looks`: when its hosts have looked for runs, by the database's
    clock.
    """

    pool: Pool
    clock: StandingClock = field(default_factory=StandingClock)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    answers: bool = True
    handled: list[str] = field(default_factory=list)
    pages: list[str | None] = field(default_factory=list)
    looks: list[datetime] = field(default_factory=list)
    on_order: Callable[[str, Context[None]], Awaitable[None]] | None = None
    on_page: Callable[[], Awaitable[None]] | None = None
    outbox_limit: int = OUTBOX_LIMIT
    most_replays: int = MOST_REPLAYS
    metrics: Metrics = field(default_factory=Metrics)

    async def prepare(self, **orders: int) -> None:
        """Tenants by their number of orders: `o000`, `o001`, …"""
        await self.pool.execute("CREATE TABLE ord (tenant text, id text, PRIMARY KEY (tenant, id))")
        for tenant, count in orders.items():
            await self.pool.executemany(
                "INSERT INTO ord VALUES ($1, $2)", [(tenant, f"o{number:03}") for number in range(count)]
            )

    async def _orders(self, query: Orders, ctx: Context[None]) -> list[str]:
        self.pages.append(query.page.after)
        if self.on_page is not None:
            await self.on_page()
        rows = await ctx.db.fetch(
            "SELECT id FROM ord WHERE tenant = $1 AND id > coalesce($2, '') ORDER BY id LIMIT $3",
            query.page.scope.tenant,
            query.page.after,
            query.page.limit,
        )
        return [row["id"] for row in rows]

    async def _check(self, command: Check, ctx: Context[None]) -> None:
        self.handled.append(command.order)
        await ctx.db.execute("INSERT INTO effect (id) VALUES ($1)", f"{ctx.scope.tenant}/{command.order}")
        if self.on_order is not None:
            await self.on_order(command.order, ctx)

    def handlers(self) -> Sequence[Handler]:
        return [answer(Orders, self._orders), handle(Check, self._check)]

    def hands(self, job: ClockJob, *, pool: Pool | None = None, handlers: Sequence[Handler] | None = None) -> RunHands:
        chosen = handlers or self.handlers()
        mediator = Mediator(
            job.job_code,
            {handler.command: handler for handler in chosen},
            deps=None,
            clock=self.clock,
            timeout=job.handler_timeout,
            threads=ThreadPoolExecutor(1),
        )
        home = LetterHome("tests", job.code, f"tests.{job.code}.dlq", most_replays=self.most_replays)
        judge = Judge(job.retry, self._probe)
        return RunHands(
            job, pool or self.pool, mediator, judge, self.clock, self.metrics, self.stop, home, self.outbox_limit
        )

    async def _probe(self) -> bool:
        return self.answers

    async def effects(self) -> list[str]:
        return [row["id"] for row in await self.pool.fetch("SELECT id FROM effect ORDER BY id")]

    async def items(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.pool.fetch("SELECT key, outcome FROM tidegate.job_item ORDER BY key")]

    async def cursor(self) -> str | None:
        found: str | None = await self.pool.fetchval("SELECT cursor FROM tidegate.job_checkpoint")
        return found

    async def host(self, *jobs: ClockJob, holder: str = "one", pool: Pool | None = None, pace: Pace) -> ClockHost:
        """A process's part that runs these jobs."""
        scheduler = _Looked(pool or self.pool, self.clock, service="tests", holder=holder, ttl=pace.lease_ttl)
        scheduler.looks = self.looks
        await scheduler.begin(jobs)
        hands = {number: self.hands(job, pool=pool) for number, job in scheduler.jobs.items()}
        return ClockHost(scheduler, hands, clock=self.clock, metrics=Metrics(), pace=pace)


@asynccontextmanager
async def hosting(shop: Workshop, *hosts: ClockHost) -> AsyncIterator[None]:
    """The hosts run inside, and are stopped in order afterwards."""
    tasks = [asyncio.create_task(host.run(shop.stop)) for host in hosts]
    try:
        yield
    finally:
        shop.stop.set()
        await asyncio.gather(*tasks)


async def has_turned(host: ClockHost, times: int) -> None:
    """The host has begun so many more turns: it has looked for what there is to do in all of them but the last."""
    for _ in range(times):
        await until(partial(_has_turned, host, host.last_sign))


async def _has_turned(host: ClockHost, since: float) -> bool:
    return host.last_sign > since


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """Returns once `condition` holds. Its deadline is for a defect: a machine that is busy may take its time."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)  # rows in a database tell nobody of their change
