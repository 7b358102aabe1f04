"""Where runs take place: topics that all read; for each run a database, a group and a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import msgspec

from bench.plan import Plan, Result
from bench.records import Written, fill_topic, half_repeated, held, new_orders
from bench.servers import Databases, delete_topics
from bench.workload import JOB
from tidegate_kernel.kafka import create_topics
from tidegate_kernel.settings import Settings

_RUN_SECONDS = 180.0


class RunFailed(RuntimeError):
    """A contestant's process ended with an error."""


class Stage:
    """Makes what runs need; what it made is gone after `open`, but for filled topics that it `keeps_topics`."""

    def __init__(self, settings: Settings, *, keeps_topics: bool) -> None:
        self.settings = settings
        self._databases = Databases(settings.postgres_dsn.get_secret_value())
        self._keeps_topics = keeps_topics
        self._filled: list[str] = []
        self._dead: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Runs may be made inside the block."""
        try:
            async with self._databases.open():
                yield
        finally:
            made = self._dead if self._keeps_topics else self._dead + self._filled
            # Each once: the broker refuses a name that a request repeats.
            await delete_topics(self.settings.kafka, list(dict.fromkeys(made)))

    async def orders(self, count: int) -> str:
        """Returns the name of a topic with `count` orders."""
        return await self._topic("orders", new_orders(count), count)

    async def repeated_orders(self, count: int) -> str:
        """Returns the name of a topic with `count` records, every order twice."""
        return await self._topic("repeats", half_repeated(new_orders(count // 2)), count)

    async def run(self, plan: Plan, *, dsn: str | None = None) -> Result:
        """Runs one contestant to its end, on a fresh database unless `dsn` names one."""
        if dsn is not None:
            return await self._run(plan, dsn)
        async with self._databases.fresh() as fresh:
            return await self._run(plan, fresh)

    def fresh_database(self) -> AbstractAsyncContextManager[str]:
        """Yields the DSN of a database of its own."""
        return self._databases.fresh()

    async def fresh_service(self) -> str:
        """Returns a service name that no run had, with a topic for its dead letters."""
        service = f"bench-{secrets.token_hex(4)}"
        self._dead.append(f"{service}.{JOB}.dlq")
        await create_topics(self.settings.kafka, {self._dead[-1]: 1})
        return service

    def environment(self, dsn: str) -> dict[str, str]:
        """The environment of a process that works on the database at `dsn`."""
        kafka = self.settings.kafka.bootstrap
        return {**os.environ, "TIDEGATE_POSTGRES_DSN": dsn, "TIDEGATE_KAFKA_BOOTSTRAP": kafka}

    async def _topic(self, what: str, records: Iterable[Written], count: int) -> str:
        # The ids carry today's date, which has a partition in the inbox: a topic serves for a day.
        name = f"bench-{what}-{count}-{datetime.now(UTC):%Y%m%d}"
        self._filled.append(name)
        present = await held(self.settings.kafka, name)
        if present == count:
            return name
        if present:
            raise RunFailed(f"topic {name!r} holds {present} records, not {count}: delete it and try again")
        print(f"writing {count:,} records to {name}", flush=True)
        await fill_topic(self.settings.kafka, name, records)
        return name

    async def _run(self, plan: Plan, dsn: str) -> Result:
        plan = plan if plan.service else msgspec.structs.replace(plan, service=await self.fresh_service())
        arguments = [sys.executable, "-m", "bench.contestant", msgspec.json.encode(plan).decode()]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=self.environment(dsn),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout=_RUN_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise RunFailed(f"{plan.contestant}: not done after {_RUN_SECONDS:.0f} s") from None
        if process.returncode:
            raise RunFailed(f"{plan.contestant}: {err.decode(errors='replace')[-2000:]}")
        return msgspec.json.decode(out, type=Result)
