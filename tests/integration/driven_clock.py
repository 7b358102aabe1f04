"""Jobs of the shop by the clock, as the shared suite drives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Self
from uuid import UUID, uuid4

from pydantic import SecretStr

from consumers.failure import RetryPolicy
from tests.integration.disc_company import VINYL, Records, catalogue_job, record_shop
from tests.integration.driven import Driven, Place
from tests.integration.shop_books import AURORA, BookShop
from tests.integration.shop_exports import ExportShop
from tidegate import App, Scope
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.commands import commands_of
from tidegate.resources import Resources
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.settings import Settings

ALICE = Actor("alice", Role.OPERATOR)
_QUICK = RetryPolicy(attempts=3, unexpected_attempts=2, first_delay=timedelta(milliseconds=5))


class ClockDriven(Driven):
    """Runs of one scope, asked for by hand; what differs is what there is to do."""

    scope: ClassVar[Scope] = AURORA

    def __init__(self, place: Place, app: App, job: ClockJob, *, deps: Any = None, clock: Clock | None = None) -> None:
        job = replace(job, retry=_QUICK)
        self.place, self.job, self.deps, self.clock = place, job, deps, clock or SystemClock()
        self.app = replace(app, jobs=[], clock_jobs=[job])
        self.stop = asyncio.Event()

    async def work(self) -> None:
        await self._ask()
        await self._process(await self._claim())

    async def trigger_again(self) -> None:
        key = str(uuid4())
        first, again = [await self._ask(key=key) for _ in range(2)]
        assert first == again, "one key is one run"
        await self._process(await self._claim())

    async def work_with_a_death(self) -> None:
        await self._ask()
        hangs = asyncio.Event()
        dying = asyncio.create_task(self._process(await self._claim(), before=self._hang_at_second_call(hangs)))
        await asyncio.wait_for(hangs.wait(), 30)
        dying.cancel()
        await asyncio.wait([dying])
        await self.place.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
        successor = await self._scheduler("successor")
        await successor.end_stalled(await successor.look())
        assert await self._process(await self._claim("successor")) is RunState.DONE

    async def work_stopped(self) -> None:
        await self._ask()

        async def ask_to_stop() -> None:
            self.stop.set()

        assert await self._process(await self._claim(), before=ask_to_stop) is RunState.DUE
        self.stop.clear()

    async def go_on(self) -> None:
        assert await self._process(await self._claim()) is RunState.DONE

    async def contend(self) -> int:
        await self._ask()
        await self._ask()
        claimed = [await (await self._scheduler(holder)).claim(5) for holder in ("one", "two")]
        for (run,) in filter(None, claimed):
            await self._process(run)
        at_once = sum(map(len, claimed))
        await self._process(await self._claim("two"))
        return at_once

    async def by_hand(self, actor: Actor) -> None:
        await self._ask(actor)

    async def failed(self) -> int:
        found: int = await self.place.pool.fetchval("SELECT count(*) FROM tidegate.job_item WHERE outcome <> 'done'")
        ended: int = await self.place.pool.fetchval("SELECT count(*) FROM tidegate.job_run WHERE state = 'failed'")
        return found or ended

    async def progress(self) -> int:
        count: int = await self.place.pool.fetchval("SELECT sum(processed + failed)::bigint FROM tidegate.job_run")
        return count

    async def _ask(self, actor: Actor = ALICE, *, key: str | None = None) -> int:
        now = self.clock.now()
        request = RunRequest(job=self.job, scope=self.scope, at=now, key=key, reason="a test")
        return (await ask_for_run(self.place.pool, actor, self.app.service, request, now=now)).run

    async def _claim(self, holder: str = "one") -> ClaimedRun:
        (run,) = await (await self._scheduler(holder)).claim(1)
        return run

    async def _scheduler(self, holder: str) -> Scheduler:
        scheduler = Scheduler(self.place.pool, self.clock, service=self.app.service, holder=holder, deps=self.deps)
        await scheduler.begin([self.job])
        return scheduler

    async def _process(
        self, run: ClaimedRun, *, before: Callable[[], Awaitable[None]] | None = None
    ) -> RunState | None:
        settings = Settings(postgres_dsn=SecretStr(self.place.dsn))
        app = self.app if before is None else _watched(self.app, self.job, before)
        with ThreadPoolExecutor(1) as threads:
            resources = Resources(settings, self.place.pool, self.clock, Metrics(), threads, "tests", self.deps)
            return await work_off(hands_of(app, self.job, resources, stop=self.stop), run)

    def _hang_at_second_call(self, hangs: asyncio.Event) -> Callable[[], Awaitable[None]]:
        calls = 0

        async def before() -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                hangs.set()
                await asyncio.Event().wait()

        return before


def _watched(app: App, job: ClockJob, before: Callable[[], Awaitable[None]]) -> App:
    """The app, whose handlers of the job's commands call `before` first."""

    def watching(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(*arguments: Any) -> Any:
            await before()
            return await function(*arguments)

        return watched

    mine = commands_of(job.command)
    handlers = [
        replace(each, function=watching(each.function)) if each.command in mine else each for each in app.handlers
    ]
    return replace(app, handlers=handlers)


class ExpiredExportsDriven(ClockDriven):
    """Items are expired exports; a bad one has a directory where its file should be."""

    code = "expired-exports"

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        shop = ExportShop(place.pool, place.dsn, place.folder / "exports")
        await shop.prepare()
        made = cls(place, shop.app, shop.job, deps=_Files(shop.files))
        made.shop, made.bad = shop, []
        yield made

    shop: ExportShop
    bad: list[UUID]

    async def offer(self, count: int) -> None:
        await self.shop.add(count)

    async def offer_bad(self) -> None:
        (export,) = await self.shop.add(1)
        self.shop.name_of(export).unlink()
        self.shop.name_of(export).mkdir()
        self.bad.append(export)

    async def mend(self) -> None:
        for export in self.bad:
            self.shop.name_of(export).rmdir()

    async def done(self) -> int:
        return sum(await self.shop.audited_items())


class _Files:
    """`ctx.deps` of the handlers of exports."""

    def __init__(self, exports: Any) -> None:
        self.exports = exports


class ReconciliationDriven(ClockDriven):
    """Items are accounts that differ from the books; a bad one differs by more than a run may set right."""

    code = "nightly-reconciliation"

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        shop = BookShop(place.pool, place.dsn)
        await shop.prepare()
        made = cls(place, shop.app, shop.job)
        made.shop, made.customers = shop, 0
        yield made

    shop: BookShop
    customers: int

    async def offer(self, count: int) -> None:
        for _ in range(count):
            await self._differ(700)

    async def offer_bad(self) -> None:
        await self._differ(100_001)

    async def mend(self) -> None:
        await self.place.pool.execute("UPDATE order_record SET cents = 700 WHERE cents > 100000")

    async def done(self) -> int:
        return len(await self.shop.corrections())

    async def events(self) -> int | None:
        return len(await self.shop.published())

    async def _differ(self, cents: int) -> None:
        self.customers += 1
        await self.shop.order(self.scope, f"n{self.customers:03}", cents)


class DiscCatalogueDriven(ClockDriven):
    """Items are discs whose price has changed; a bad one has a price below nothing, and its run stops there."""

    code = "disc-catalogue"
    scope = VINYL
    stops_at_failure = True

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        async with record_shop(place.pool, place.dsn, place.folder / "keys.json") as records:
            job = catalogue_job(run_attempts=2)
            made = cls(place, records.app(job), job, deps=records.deps, clock=records.clock)
            made.records, made.sold = records, 0
            yield made

    records: Records
    sold: int

    async def offer(self, count: int) -> None:
        for _ in range(count):
            self.sold += 1
            self.records.sell(self.sold)

    async def offer_bad(self) -> None:
        self.sold += 1
        self.records.sell(self.sold, price_cents=-1)

    async def mend(self) -> None:
        for disc, sold in list(self.records.company.discs["vinyl"].items()):
            if sold.price_cents < 0:
                self.records.sell(int(disc.removeprefix("d")))

    async def work(self) -> None:
        self.records.clock.move(minutes=1)
        await super().work()

    async def done(self) -> int:
        return len(await self.records.published())

    async def events(self) -> int | None:
        return len(await self.records.published())
