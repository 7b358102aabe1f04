"""The shop's exports for tests: rows in a database, files in a directory, and the job that removes them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from pydantic import SecretStr

from examples.shop.app import shop
from examples.shop.exports.files import ExportFiles, file_of
from examples.shop.exports.job import KEPT, exports_dependency
from tidegate import Scope
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

AURORA, OTHER = Scope("aurora", "vinyl"), Scope("borealis", "vinyl")
OLD, YOUNG = KEPT + timedelta(hours=1), KEPT - timedelta(hours=1)
_ROW = """
INSERT INTO export (tenant, brand, id, customer_id, requested_at, is_ready, is_held)
VALUES ($1, $2, $3, 'c-1', now() - $4::interval, true, $5)
"""
_TABLES = Path(__file__).parents[2] / "examples" / "shop" / "migrations" / "0003_exports.sql"


class ExportShop:
    """The job as the shop declares it, three exports a chunk."""

    def __init__(self, pool: Pool, dsn: str, directory: Path, *, prefix: str = "") -> None:
        self.pool, self.files = pool, ExportFiles(directory)
        self.settings = Settings(postgres_dsn=SecretStr(dsn))
        declared = shop(prefix)
        job = replace(declared.clock_job("expired-exports"), batch_size=3, run_retry_delay=timedelta(0))
        others = [each for each in declared.dependencies if each.name != "exports"]
        self.app = replace(declared, clock_jobs=[job], dependencies=[*others, exports_dependency(self.files)])
        self.job, self.stop = job, asyncio.Event()

    async def prepare(self) -> None:
        await self.pool.execute(_TABLES.read_text(encoding="utf-8"))
        self.files.make_first()

    async def add(
        self, count: int = 1, *, scope: Scope = AURORA, age: timedelta = OLD, is_held: bool = False
    ) -> set[UUID]:
        """Exports of that age, with their files; returns their ids."""
        made = {uuid4() for _ in range(count)}
        for export in made:
            await self.pool.execute(_ROW, scope.tenant, scope.brand, export, age, is_held)
            await asyncio.to_thread(self.files.write, export, b"somebody's data")
        return made

    async def rows(self) -> set[UUID]:
        return {row["id"] for row in await self.pool.fetch("SELECT id FROM export")}

    def on_disk(self) -> set[UUID]:
        return {UUID(file.stem) for file in self.files.directory.glob("*.csv")}

    async def scheduler(self, holder: str) -> Scheduler:
        scheduler = Scheduler(self.pool, SystemClock(), service=self.app.service, holder=holder)
        await scheduler.begin([self.job])
        return scheduler

    async def claim(self, holder: str = "worker") -> ClaimedRun:
        """Somebody asks for a run, and it is this process's."""
        now = SystemClock().now()
        request = RunRequest(job=self.job, scope=AURORA, at=now, reason="a test")
        await ask_for_run(self.pool, Actor("alice", Role.OPERATOR), self.app.service, request, now=now)
        (run,) = await (await self.scheduler(holder)).claim(1)
        return run

    async def claim_after_death(self) -> ClaimedRun:
        """As if the dead process's lease had run out: its run is found, and another goes on with it."""
        await self.pool.execute("UPDATE tidegate.lease SET expires_at = now()")
        scheduler = await self.scheduler("successor")
        await scheduler.end_stalled(await scheduler.look())
        (run,) = await scheduler.claim(1)
        return run

    async def work_off(self, run: ClaimedRun) -> RunState | None:
        deps: Any = SimpleNamespace(exports=self.files)
        with ThreadPoolExecutor(1) as threads:
            resources = Resources(self.settings, self.pool, SystemClock(), Metrics(), threads, "tests", deps)
            return await work_off(hands_of(self.app, self.job, resources, stop=self.stop), run)

    async def audited_items(self) -> list[int]:
        read = "SELECT (parameters ->> 'items')::int AS items FROM tidegate.audit WHERE action = $1 ORDER BY seq"
        return [row["items"] for row in await self.pool.fetch(read, "maintenance:remove")]

    def name_of(self, export: UUID) -> Path:
        return self.files.directory / file_of(export)
