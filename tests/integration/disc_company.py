"""The shop's catalogue on a real Postgres and a real HTTP server: what tests of providers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pydantic import SecretStr

from consumers.failure import RetryPolicy
from examples.shop.catalogue.discs import AskForDiscs, KeepDisc, fetch_discs, keep_disc
from examples.shop.catalogue.job import disc_catalogue
from examples.shop.catalogue.provider_server import Company, Fault, serving
from examples.shop.catalogue.supplier import CatalogueKeys, DiscCompany
from examples.shop.resources import Shop, export_files
from tests.integration.clockwork import StandingClock
from tidegate import App, HttpProvider, ProviderSyncJob, RateLimit, Scope, fetch, handle
from tidegate.clocking import hands_of
from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.units import RunHands
from tidegate.resources import Resources
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

# Long before the database's own time, whenever the tests are run: the provider's clock is then the earlier one.
NOON = datetime(2020, 5, 1, 12, tzinfo=UTC)
VINYL = Scope("aurora", "vinyl")
KEY = "key-of-aurora-4711"

_ROOT = Path(__file__).parents[2]
_TABLES = _ROOT / "examples" / "shop" / "migrations" / "0002_disc.sql"


def catalogue_job(**fields: Any) -> ProviderSyncJob:
    """The shop's job in a hurry: pages of four, no pause between calls worth a wait."""
    quick: dict[str, Any] = {
        "batch_size": 4,
        "jitter": timedelta(0),
        "scopes": [VINYL],
        "rate_limit": RateLimit(10_000),
        "retry": RetryPolicy(attempts=3, unexpected_attempts=2, first_delay=timedelta(milliseconds=5)),
        "run_retry_delay": timedelta(0),
    }
    return replace(disc_catalogue(), **quick | fields)


@dataclass
class Records:
    """A disc company, and one process of the shop that synchronises with it."""

    pool: Pool
    dsn: str
    url: str
    company: Company
    deps: Shop
    clock: StandingClock
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: Metrics = field(default_factory=Metrics)
    topic: str = "shop.discs"

    def app(self, job: ProviderSyncJob) -> App:
        handlers = [fetch(AskForDiscs, fetch_discs), handle(KeepDisc, keep_disc(self.topic))]
        return App(service="shop", owner="tests", jobs=[], handlers=handlers, clock_jobs=[job])

    def hands(self, job: ProviderSyncJob) -> RunHands:
        """As a worker makes them."""
        resources = Resources(
            settings=Settings(postgres_dsn=SecretStr(self.dsn)),
            pool=self.pool,
            clock=self.clock,
            metrics=self.metrics,
            threads=ThreadPoolExecutor(1),
            owner="one",
            deps=self.deps,
        )
        return hands_of(self.app(job), job, resources, stop=self.stop)

    async def scheduler(self, job: ProviderSyncJob, *, holder: str = "one") -> Scheduler:
        scheduler = Scheduler(self.pool, self.clock, service="shop", holder=holder, deps=self.deps)
        await scheduler.begin([job])
        return scheduler

    async def due(self, scheduler: Scheduler) -> ClaimedRun:
        """The run of the next quarter of an hour, or whatever else is due then."""
        self.clock.move(minutes=15)
        await scheduler.make_runs()
        return await self.claimed(scheduler)

    async def claimed(self, scheduler: Scheduler) -> ClaimedRun:
        (run,) = await scheduler.claim(1)
        return run

    async def host(self, job: ProviderSyncJob, *, pace: Pace) -> ClockHost:
        """A process's part that runs the job."""
        scheduler = Scheduler(self.pool, self.clock, service="shop", holder="one", deps=self.deps, ttl=pace.lease_ttl)
        await scheduler.begin([job])
        hands = {number: self.hands(job) for number in scheduler.jobs}
        return ClockHost(scheduler, hands, clock=self.clock, metrics=self.metrics, pace=pace)

    async def sync(self, job: ProviderSyncJob) -> RunState | None:
        """The next run, from its claim to its end."""
        return await work_off(self.hands(job), await self.due(await self.scheduler(job)))

    async def discs(self, tenant: str = "aurora") -> dict[str, int]:
        """What the shop has: prices by disc."""
        rows = await self.pool.fetch("SELECT disc_id, price_cents FROM disc WHERE tenant = $1 ORDER BY disc_id", tenant)
        return {row["disc_id"]: row["price_cents"] for row in rows}

    async def published(self) -> list[tuple[str, int]]:
        """The events that the shop has published, in order."""
        rows = await self.pool.fetch("SELECT value FROM tidegate.outbox WHERE topic = $1 ORDER BY id", self.topic)
        return [(told["disc_id"], told["price_cents"]) for told in (json.loads(row["value"]) for row in rows)]

    async def run(self) -> dict[str, Any]:
        """The newest run, as it stands."""
        row = await self.pool.fetchrow("SELECT * FROM tidegate.job_run ORDER BY id DESC LIMIT 1")
        assert row is not None
        return dict(row)

    async def cursor(self) -> dict[str, Any]:
        """What the last successful run has left."""
        row = await self.pool.fetchrow("SELECT * FROM tidegate.provider_cursor")
        assert row is not None
        return dict(row)

    async def has_cursor(self) -> bool:
        return bool(await self.pool.fetchval("SELECT count(*) FROM tidegate.provider_cursor"))

    @property
    def pages(self) -> list[str | None]:
        """The pages that the company was asked for, by their names, in order."""
        return [each.get("page") for each in self.company.asked]

    @property
    def since(self) -> list[str | None]:
        """Since when the company was asked each time, in order."""
        return [each.get("changed_since") for each in self.company.asked]

    def sell(self, *numbers: int, **fields: Any) -> None:
        """Discs of that number, each changed a second after the other."""
        for number in numbers:
            self.clock.move(seconds=1)
            self.company.sell("vinyl", f"d{number:02}", **{"price_cents": 1000 + number} | fields)

    def mend(self, disc: str) -> None:
        """The company has the title right from now on, and calls it no change."""
        sold = self.company.discs["vinyl"]
        sold[disc] = msgspec.structs.replace(sold[disc], title="Mended")

    def on_page(self, number: int, act: Any) -> None:
        """`act` once, right after the company has answered with that page (1 = the first)."""
        answered: list[Mapping[str, str]] = []

        def watch(asked: Mapping[str, str]) -> None:
            answered.append(asked)
            if len(answered) == number:
                act()

        self.company.on_answer = watch


@asynccontextmanager
async def record_shop(pool: Pool, dsn: str, keys_file: Path) -> AsyncIterator[Records]:
    """A company that answers, and the shop's table."""
    clock = StandingClock(NOON)
    company = Company({"aurora": KEY, "borealis": "key-of-borealis"}, now=clock.now)
    keys_file.write_text(json.dumps({"aurora": KEY, "cascade": "key-of-cascade"}))
    await pool.execute(_TABLES.read_text(encoding="utf-8"))
    async with serving(company) as url, calling(pool, dsn, url, keys_file) as shop:
        yield replace(shop, company=company, clock=clock)


@asynccontextmanager
async def calling(pool: Pool, dsn: str, url: str, keys_file: Path) -> AsyncIterator[Records]:
    """A process that synchronises with the company at `url`."""
    clock, keys = StandingClock(NOON), CatalogueKeys(keys_file)
    async with HttpProvider.open_session() as session:
        api = HttpProvider(name="disc-company", url=url, session=session, credentials=keys, clock=clock)
        yield Records(pool, dsn, url, Company({}), Shop(export_files(), DiscCompany(api, keys)), clock)


def away(*, page: str | None = None, times: int = 1, status: int | None = 503) -> list[Fault]:
    """Errors of the company: for any question, or for one page alone."""
    return [Fault(status, when=lambda asked: page is None or asked.get("page") == page)] * times
