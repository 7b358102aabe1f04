"""Runs over the dead letters of a bench, on real Postgres: a job's letters, replayed by today's handlers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from consumers.failure import RetryPolicy
from consumers.replay import Replay
from consumers.replay_hands import Hands
from consumers.replay_verdicts import Verdicts
from dlq.runs import Hold, Outcome, Run, RunKind, Wish, read_run, resume_run, start_run
from projections.sink import Sink
from tests.integration.parking_bench import Note, note, parking_job
from tidegate import App, Context, Dependency, Handler, Rejected, handle
from tidegate.assembly import replay_hands
from tidegate.jobs.declaration import ConsumerJob, Job
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import ReplayId
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

_WAITS_SHORT = RetryPolicy(name="replay")


async def lenient(command: Note, ctx: Context[None]) -> None:
    """The mended handler: takes negative numbers, too."""
    await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, $2)", command.id, command.n)


def mended() -> list[Handler]:
    return [handle(Note, lenient)]


def failing_for(*ids: str) -> list[Handler]:
    async def some_fail(command: Note, ctx: Context[None]) -> None:
        await lenient(command, ctx)
        if command.id in ids:
            raise Rejected("not this one")

    return [handle(Note, some_fail)]


class ReplayBench:
    """Replays letters of one job with the handlers given; `handlers` can be changed, as a deployment does."""

    def __init__(
        self,
        pool: Pool,
        dsn: str,
        job: Job | None = None,
        *,
        sink: Sink | None = None,
        dependencies: Sequence[Dependency] = (),
    ) -> None:
        self.pool, self._dsn, self._sink, self._dependencies = pool, dsn, sink, dependencies
        self.job = parking_job() if job is None else job
        self.handlers: Sequence[Handler] = [handle(Note, note)]
        self.most_replays = 5
        self.last: Replay | None = None

    async def letters(self, *, states: Sequence[str] = ("dead",)) -> list[UUID]:
        rows = await self.pool.fetch(
            'SELECT id FROM tidegate.dead_letter WHERE state = ANY($1) ORDER BY topic, partition, "offset"',
            list(states),
        )
        return [row["id"] for row in rows]

    async def begin(
        self, letters: Sequence[UUID] | None = None, *, kind: RunKind = RunKind.REPLAY, **more: Any
    ) -> Hold:
        chosen = await self.letters() if letters is None else letters
        ledger, _ = await self._hands(kind)
        wish = Wish(kind=kind, letters=chosen, digest="", reason="mended", asked_by="tests", **more)
        async with self.pool.acquire() as connection, connection.transaction():
            return await start_run(connection, ledger.origin.job, wish, holder="tests")

    async def resume(self, run: ReplayId) -> Hold:
        ledger, _ = await self._hands(RunKind.REPLAY)
        async with self.pool.acquire() as connection, connection.transaction():
            return await resume_run(connection, ledger.origin.job, run, holder="tests")

    async def replay(
        self, letters: Sequence[UUID] | None = None, *, kind: RunKind = RunKind.REPLAY, **more: Any
    ) -> dict[Outcome, int]:
        """Runs to the end; returns how many letters came to each outcome."""
        return await self.work_off(await self.begin(letters, kind=kind, **more), kind=kind)

    async def work_off(self, held: Hold, *, kind: RunKind = RunKind.REPLAY) -> dict[Outcome, int]:
        replay = await self.runner(held, kind=kind)
        await replay.run()
        return dict((await self.run(held)).outcomes)

    async def runner(
        self,
        held: Hold,
        *,
        kind: RunKind = RunKind.REPLAY,
        rate: float | None = None,
        pool: Pool | None = None,
        silence_limit: timedelta | None = None,
    ) -> Replay:
        """`pool`: that of another process."""
        ledger, hands = await self._hands(kind, pool)
        if silence_limit is None:
            silence_limit = self.job.silence_limit if isinstance(self.job, ConsumerJob) else timedelta(seconds=60)
        verdicts = Verdicts(ledger, held, self.most_replays, "tests", "mended", silence_limit)
        self.last = Replay(hands, verdicts, policy=_WAITS_SHORT, clock=SystemClock(), rate=rate)
        return self.last

    async def run(self, held: Hold) -> Run:
        async with self.pool.acquire() as connection:
            return await read_run(connection, "tests", held.run)

    async def states(self) -> list[str]:
        rows = await self.pool.fetch(
            'SELECT state FROM tidegate.dead_letter ORDER BY topic, partition, "offset", first_failed_at'
        )
        return [row["state"] for row in rows]

    async def _hands(self, kind: RunKind, pool: Pool | None = None) -> tuple[Any, Hands]:
        settings = Settings(postgres_dsn=SecretStr(self._dsn))
        handlers = self.handlers if self._sink is None else ()
        app = App(
            service="tests", owner="tests", jobs=[self.job], handlers=handlers, dependencies=list(self._dependencies)
        )
        resources = Resources(settings, pool or self.pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "tests")
        return await replay_hands(app, self.job, resources, sink=self._sink, kind=kind)
