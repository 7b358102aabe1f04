"""Jobs of the shop by the clock, as the shared suite drives them: what they publish is read from the real Kafka."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Self
from uuid import UUID, uuid4

from pydantic import SecretStr

from consumers.failure import RetryPolicy
from examples.shop.exports.removal import RemoveExport, place_of
from tests.integration.clockwork import until
from tests.integration.disc_company import VINYL, Records, catalogue_job, record_shop
from tests.integration.driven import Driven, Place
from tests.integration.driven_kafka import Topics
from tests.integration.shop_books import AURORA, BookShop
from tests.integration.shop_exports import ExportShop
from tidegate import App, Handler, Scope
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.declaration import ClockJob, Page
from tidegate.jobs.clockwork.provider.question import Question
from tidegate.jobs.clockwork.quarantine import ItemChoice, replay_items
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState, claim_runs
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.commands import commands_of
from tidegate.resources import Resources
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Action, Actor, Role
from tidegate_kernel.settings import Settings

ALICE = Actor("alice", Role.OPERATOR)
_Look = Callable[[Any], Awaitable[None]]
_QUICK = RetryPolicy(attempts=3, unexpected_attempts=2, first_delay=timedelta(milliseconds=5))


class ClockDriven(Driven):
    """Runs of one scope, asked for by hand; what differs is what there is to do.

    A page, or what is one transaction of it, holds fewer items than are offered wherever a checkpoint is looked at.
    """

    scope: ClassVar[Scope] = AURORA
    pages: Sequence[str | None] = ()
    """Behind which places the latest work has asked for a page, in order."""
    topic: str | None = None
    """What the job publishes its events to."""

    def __init__(
        self,
        place: Place,
        app: App,
        job: ClockJob,
        topics: Topics,
        *,
        deps: Any = None,
        clock: Clock | None = None,
    ) -> None:
        job = replace(job, retry=_QUICK)
        self.place, self.job, self.deps, self.clock = place, job, deps, clock or SystemClock()
        self.topics = topics
        self.app = replace(app, jobs=[], clock_jobs=[job])
        self.stop = asyncio.Event()

    @abstractmethod
    def passed(self, after: str | None) -> int:
        """How many of the items that were offered a page behind `after` leaves out."""

    def next_page(self, cursor: str | None) -> str | None:
        """Behind what the next page is asked for, by what is stored of the checkpoint."""
        return cursor

    def page_of(self, query: Any) -> Page:
        """What a handler of the job's query is asked for."""
        page: Page = query.page
        return page

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
        await self._die(await self._claim())
        passed = await self.progress()
        await self.place.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
        successor = await self._scheduler("successor")
        await successor.end_stalled(await successor.look())
        assert await self._process(await self._claim("successor")) is RunState.DONE
        assert 0 < passed == self.began_behind(), "a retry goes on at the checkpoint"

    async def work_stopped(self) -> None:
        await self._ask()

        async def ask_to_stop() -> None:
            self.stop.set()

        assert await self._process(await self._claim(), before=_at_call(2, ask_to_stop)) is RunState.DUE
        self.stop.clear()

    async def go_on(self) -> None:
        passed = await self.progress()
        assert await self._process(await self._claim()) is RunState.DONE
        assert 0 < passed == self.began_behind(), "a run that was put back goes on at the checkpoint"

    async def contend(self) -> int:
        """Both claim while the other does; the one who lost waits inside Postgres for the winner's lease.

        Then the winner is taken for dead, and is at work beside whoever has the lease after it.
        """
        for _ in range(2):
            await self._ask()
        winner = await self._claim_against("two")
        await self.place.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
        successor = await self._scheduler("two")
        await successor.end_stalled(await successor.look())
        ended = await asyncio.gather(self._process(winner), self._process(await self._claim("two")))
        await self._process(await self._claim("two"))
        return sum(state is RunState.DONE for state in ended)

    async def by_hand(self, actor: Actor) -> None:
        rows = await self.place.pool.fetch("SELECT key FROM tidegate.job_item WHERE outcome <> 'done'")
        choice = ItemChoice(job=self.job, scope=self.scope, keys=[row["key"] for row in rows])
        assert choice.keys, "nothing has failed"
        now = self.clock.now()
        replayed = await replay_items(self.place.pool, actor, self.app.service, choice, reason="a test", now=now)
        run = await self._claim()
        assert (run.is_replay, [run.id]) == (True, replayed.runs)
        assert await self._process(run) is RunState.DONE

    async def events(self) -> int | None:
        return None if self.topic is None else len(await self.topics.read(self.topic))

    async def letters(self) -> int:
        return await self.topics.letters(self.app.dlq_topic(self.job.job_code))

    async def failed(self) -> int:
        found: int = await self.place.pool.fetchval("SELECT count(*) FROM tidegate.job_item WHERE outcome <> 'done'")
        ended: int = await self.place.pool.fetchval("SELECT count(*) FROM tidegate.job_run WHERE state = 'failed'")
        return found or ended

    async def progress(self) -> int:
        cursor: str | None = await self.place.pool.fetchval("SELECT cursor FROM tidegate.job_checkpoint")
        return self.passed(self.next_page(cursor))

    def began_behind(self) -> int:
        return self.passed(self.pages[0])

    async def _ask(self, actor: Actor = ALICE, *, key: str | None = None) -> int:
        now = self.clock.now()
        request = RunRequest(job=self.job, scope=self.scope, at=now, key=key, reason="a test")
        return (await ask_for_run(self.place.pool, actor, self.app.service, request, now=now)).run

    async def _claim(self, holder: str = "one") -> ClaimedRun:
        (run,) = await (await self._scheduler(holder)).claim(1)
        return run

    async def _claim_against(self, loser: str) -> ClaimedRun:
        """A claim whose COMMIT comes once another process, which has found the other run of the scope, waits for it."""
        scheduler, rival, pool = await self._scheduler("one"), await self._scheduler(loser), self.place.pool
        async with pool.acquire() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            async with connection.transaction():
                (run,) = (
                    await claim_runs(connection, list(scheduler.jobs), now=self.clock.now(), limit=1, holder="one")
                ).runs
                losing = asyncio.create_task(rival.claim(1))
                await until(partial(self._is_waited_for, pid))
        assert await losing == [], "one lease"
        return run

    async def _is_waited_for(self, pid: int) -> bool:
        """Whether somebody waits for a lock of that server process."""
        waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
        return bool(await self.place.pool.fetchval(waits, pid))

    async def _scheduler(self, holder: str) -> Scheduler:
        scheduler = Scheduler(self.place.pool, self.clock, service=self.app.service, holder=holder, deps=self.deps)
        await scheduler.begin([self.job])
        return scheduler

    async def _process(
        self, run: ClaimedRun, *, before: _Look | None = None, after: _Look | None = None
    ) -> RunState | None:
        settings = Settings(postgres_dsn=SecretStr(self.place.dsn))
        self.pages = asked = list[str | None]()

        async def note(query: Any) -> None:
            asked.append(self.page_of(query).after)

        app = _watched(self.app, self.job.query, before=note)
        app = _watched(app, self.job.command, before=before, after=after)
        with ThreadPoolExecutor(1) as threads:
            resources = Resources(settings, self.place.pool, self.clock, Metrics(), threads, "tests", self.deps)
            ended = await work_off(hands_of(app, self.job, resources, stop=self.stop), run)
        await self.topics.relay()
        return ended

    async def _die(self, run: ClaimedRun) -> None:
        """The process is gone when its third unit is done but for the COMMIT: it waits for the row of its lease.

        What was published by then is on its way before anybody goes on, and the outbox has forgotten it.
        """
        async with self.place.pool.acquire() as holder:
            pid = await holder.fetchval("SELECT pg_backend_pid()")

            async def hold() -> None:
                await holder.execute("SELECT FROM tidegate.lease WHERE name = $1 FOR UPDATE", run.lock_name)

            async with holder.transaction():
                dying = asyncio.create_task(self._process(run, after=_at_call(3, hold)))
                await until(partial(self._is_waited_for, pid))
                dying.cancel()
        await asyncio.wait([dying])
        await self.topics.relay()


def _at_call(number: int, act: Callable[[], Awaitable[None]]) -> _Look:
    """`act` at the `number`th call of a handler."""
    calls = 0

    async def look(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            await act()

    return look


def _watched(app: App, maker: Callable[..., Any], *, before: _Look | None = None, after: _Look | None = None) -> App:
    """The app, whose handlers of what `maker` makes call `before` first and `after` last, with it."""

    def watching(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(*arguments: Any) -> Any:
            if before is not None:
                await before(arguments[0])
            answer = await function(*arguments)
            if after is not None:
                await after(arguments[0])
            return answer

        return watched

    def watched_handler(handler: Handler) -> Handler:
        function = watching(handler.function)
        return replace(handler, function=function, prepare=function if handler.fetches else handler.prepare)

    mine = commands_of(maker)
    handlers = [watched_handler(each) if each.command in mine else each for each in app.handlers]
    return replace(app, handlers=handlers)


def _topics(place: Place, app: App, job: ClockJob, *published: str) -> AbstractAsyncContextManager[Topics]:
    """What the job publishes to: its events and its dead letters."""
    return Topics.at(place, dict.fromkeys([*published, app.dlq_topic(job.job_code)], 1))


class ExpiredExportsDriven(ClockDriven):
    """Items are expired exports; a bad one has a directory where its file should be."""

    code = "expired-exports"
    makes_letters = False

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        shop = ExportShop(place.pool, place.dsn, place.folder / "exports", prefix=place.prefix)
        await shop.prepare()
        async with _topics(place, shop.app, shop.job) as topics:
            made = cls(place, shop.app, shop.job, topics, deps=_Files(shop.files))
            made.shop, made.bad, made.places = shop, [], []
            yield made

    shop: ExportShop
    bad: list[UUID]
    places: list[str]

    def passed(self, after: str | None) -> int:
        return 0 if after is None else self.places.index(after) + 1

    async def offer(self, count: int) -> None:
        for _ in range(count):
            await self._add()

    async def offer_bad(self) -> None:
        export = await self._add()
        self.shop.name_of(export).unlink()
        self.shop.name_of(export).mkdir()
        self.bad.append(export)

    async def mend(self) -> None:
        for export in self.bad:
            self.shop.name_of(export).rmdir()

    async def done(self) -> int:
        return sum(await self.shop.audited_items())

    async def _add(self) -> UUID:
        (export,) = await self.shop.add(1)
        at = await self.place.pool.fetchval("SELECT requested_at FROM export WHERE id = $1", export)
        self.places.append(place_of(RemoveExport(export, at, at)))
        return export


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
        shop = BookShop(place.pool, place.dsn, prefix=place.prefix)
        await shop.prepare()
        async with _topics(place, shop.app, shop.job, shop.topic) as topics:
            made = cls(place, shop.app, shop.job, topics)
            made.shop, made.customers, made.topic = shop, 0, shop.topic
            yield made

    shop: BookShop
    customers: int

    def passed(self, after: str | None) -> int:
        return 0 if after is None else int(after.removeprefix("n"))

    async def offer(self, count: int) -> None:
        for _ in range(count):
            await self._differ(700)

    async def offer_bad(self) -> None:
        await self._differ(100_001)

    async def mend(self) -> None:
        await self.place.pool.execute("UPDATE order_record SET cents = 700 WHERE cents > 100000")

    async def done(self) -> int:
        return len(await self.shop.corrections())

    async def _differ(self, cents: int) -> None:
        self.customers += 1
        await self.shop.order(self.scope, f"n{self.customers:03}", cents)


class DiscCatalogueDriven(ClockDriven):
    """Items are discs whose price has changed; a bad one has a price below nothing, and its run stops there.

    The item that stops a run is no dead letter: what it did is rolled back, and the next run meets it again. So nothing
    is left that could be replayed, and what somebody can ask for is a run, which is what `by_hand` does.
    """

    code = "disc-catalogue"
    scope = VINYL
    stops_at_failure = True
    makes_letters = False
    deed_by_hand = Action.RUN_TRIGGER

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place) -> AsyncIterator[Self]:
        async with record_shop(place.pool, place.dsn, place.folder / "keys.json") as records:
            job = catalogue_job(run_attempts=2, batch_size=2)
            records.topic = f"{place.prefix}{records.topic}"
            app = replace(records.app(job), service=f"{place.prefix}shop")
            async with _topics(place, app, job, records.topic) as topics:
                made = cls(place, app, job, topics, deps=records.deps, clock=records.clock)
                made.records, made.sold, made.topic = records, 0, records.topic
                yield made

    records: Records
    sold: int

    def passed(self, after: str | None) -> int:
        """A page is named by the disc it begins behind: what comes behind it as the company sees it now."""
        found = self.records.company.page(self.scope.brand, None, after, self.sold)
        return self.sold - len(found.discs)

    def next_page(self, cursor: str | None) -> str | None:
        question = Question.read(cursor)
        return None if question is None else question.page

    def page_of(self, query: Any) -> Page:
        page: Page = query.pull
        return page

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

    async def by_hand(self, actor: Actor) -> None:
        assert not await self.place.pool.fetchval("SELECT count(*) FROM tidegate.job_item"), "nothing to be replayed"
        self.records.clock.move(minutes=1)
        await self._ask(actor)
        assert await self._process(await self._claim()) is RunState.DONE

    async def done(self) -> int:
        """Prices in the topic: what is in the table would be the same after a double."""
        return len(await self.topics.read(self.records.topic))
