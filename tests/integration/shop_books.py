"""The shop's books and ledger for tests, and the job that compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from examples.shop.app import shop
from examples.shop.reconciliation.corrections import Corrections
from examples.shop.reconciliation.differences import CorrectAccount
from tidegate import Context, Scope, handle
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

AURORA, BOREALIS = Scope("aurora", "vinyl"), Scope("borealis", "vinyl")
CLOSED = datetime(2026, 5, 1, tzinfo=UTC)
ALICE = Actor("alice", Role.OPERATOR)
_TOPIC = "shop.ledger-corrections"

Correct = Callable[[CorrectAccount, Context[Any]], Awaitable[None]]

_MIGRATIONS = Path(__file__).parents[2] / "examples" / "shop" / "migrations"


class BookShop:
    """The job as the shop declares it, two accounts a page."""

    def __init__(self, pool: Pool, dsn: str, *, prefix: str = "") -> None:
        self.pool, self.settings = pool, Settings(postgres_dsn=SecretStr(dsn))
        self.stop = asyncio.Event()
        declared = shop(prefix)
        self.topic = f"{prefix}{_TOPIC}"
        self.job = replace(
            declared.clock_job("nightly-reconciliation"),
            batch_size=2,
            run_retry_delay=timedelta(0),
            jitter=timedelta(0),
        )
        self.app = replace(declared, clock_jobs=[self.job])

    async def prepare(self, *, are_closed: Sequence[Scope] = (AURORA, BOREALIS)) -> None:
        """Five customers of two tenants with two orders each, of 10.00 and 5.00; books and ledger agree."""
        for name in ("0001_ledger.sql", "0004_order_books.sql"):
            await self.pool.execute((_MIGRATIONS / name).read_text(encoding="utf-8"))
        for scope in (AURORA, BOREALIS):
            for customer in range(5):
                for cents in (1000, 500):
                    await self.order(scope, f"c{customer}", cents)
                await self.account(scope, f"c{customer}", 2, 1500)
        for scope in are_closed:
            place = (scope.tenant, scope.brand, CLOSED)
            await self.pool.execute("INSERT INTO books_closed VALUES ($1, $2, $3)", *place)

    async def order(
        self, scope: Scope, customer: str, cents: int, *, at: datetime = CLOSED - timedelta(days=1)
    ) -> None:
        """An order stands in the books."""
        await self.pool.execute(
            "INSERT INTO order_record VALUES ($1, $2, gen_random_uuid()::text, $3, $4, $5)",
            *(scope.tenant, scope.brand, customer, cents, at),
        )

    async def account(self, scope: Scope, customer: str, orders: int, cents: int) -> None:
        """The ledger says so."""
        await self.pool.execute(
            "INSERT INTO ledger VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (tenant, brand, customer_id) DO UPDATE SET orders = $4, cents = $5",
            *(scope.tenant, scope.brand, customer, orders, cents),
        )

    async def ledger(self, scope: Scope) -> dict[str, tuple[int, int]]:
        read = "SELECT customer_id, orders, cents FROM ledger WHERE tenant = $1 AND brand = $2"
        rows = await self.pool.fetch(read, scope.tenant, scope.brand)
        return {row["customer_id"]: (row["orders"], row["cents"]) for row in rows}

    async def corrections(self) -> list[tuple[str, str, int, int]]:
        """What was set right: tenant, customer, orders, cents."""
        read = "SELECT tenant, customer_id, orders, cents FROM ledger_correction ORDER BY tenant, customer_id"
        return [tuple(row) for row in await self.pool.fetch(read)]

    async def published(self) -> list[str]:
        read = "SELECT convert_from(key, 'UTF8') AS key FROM tidegate.outbox WHERE topic = $1 ORDER BY id"
        return [row["key"] for row in await self.pool.fetch(read, self.topic)]

    async def ask(self, scope: Scope = AURORA, **parameters: str) -> ClaimedRun:
        """Somebody asks for a run, and it is this process's."""
        now = SystemClock().now()
        request = RunRequest(job=self.job, scope=scope, at=now, parameters=parameters, reason="a test")
        await ask_for_run(self.pool, ALICE, self.app.service, request, now=now)
        return await self.claim("worker")

    async def claim(self, holder: str) -> ClaimedRun:
        (run,) = await (await self._scheduler(holder)).claim(1)
        return run

    async def claim_after_death(self) -> ClaimedRun:
        """As if the dead process's lease had run out: its run is found, and another goes on with it."""
        await self.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
        scheduler = await self._scheduler("successor")
        await scheduler.end_stalled(await scheduler.look())
        return await self.claim("successor")

    async def work_off(self, run: ClaimedRun, *, correct: Correct | None = None) -> RunState | None:
        app = self.app
        if correct is not None:
            others = [handler for handler in app.handlers if handler.command is not CorrectAccount]
            app = replace(app, handlers=[*others, handle(CorrectAccount, correct)])
        with ThreadPoolExecutor(1) as threads:
            resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), threads, "tests")
            return await work_off(hands_of(app, self.job, resources, stop=self.stop), run)

    async def _scheduler(self, holder: str) -> Scheduler:
        scheduler = Scheduler(self.pool, SystemClock(), service=self.app.service, holder=holder)
        await scheduler.begin([self.job])
        return scheduler


own_correct = Corrections(_TOPIC).correct
