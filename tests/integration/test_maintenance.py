"""Jobs that remove what has been kept for long enough: chunks, the audit of sensitive ones, dry runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from consumers.failure import RetryPolicy
from tests.integration.clockwork import ACME, NOON, ZEBRA, Schedulers, Workshop, forget_lease
from tidegate import ByRule, Context, Cron, Handler, MaintenanceJob, Page, RetryLater, answer, handle_batch
from tidegate.jobs.clockwork.history import History
from tidegate.jobs.clockwork.maintenance_preview import QueryFailed, Supposed, preview
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.clockwork.scheduler import Scheduler
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

MONTH = timedelta(days=30)
QUICK = RetryPolicy(attempts=2, unexpected_attempts=1, first_delay=timedelta(milliseconds=5))


@dataclass(frozen=True)
class Expired:
    page: Page


@dataclass(frozen=True)
class Remove:
    id: str


def letters(**fields: Any) -> MaintenanceJob:
    """A job that removes letters kept for a month, four a chunk."""
    declared: dict[str, Any] = {
        "code": "old-letters",
        "trigger": Cron("* * * * *", "UTC"),
        "query": Expired,
        "command": Remove,
        "key": str,
        "scopes": [ACME],
        "runbook": "-",
        "retention": MONTH,
        "is_sensitive": True,
        "batch_size": 4,
        "retry": QUICK,
        "run_retry_delay": timedelta(0),
    }
    return MaintenanceJob(**declared | fields)


class Archive:
    """Letters by tenant and age, and the handlers that remove them."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.shop = pool, Workshop(pool)
        self.asked_before: set[datetime | None] = set()
        self.fails_at: str | None = None
        self.error: Exception = RuntimeError("the disk is full")

    async def fill(self, *, tenant: str = "acme", old: int = 0, young: int = 0) -> None:
        await self.pool.execute("CREATE TABLE IF NOT EXISTS letter (tenant text, id text, written timestamptz)")
        for kind, count, age in (("old", old, MONTH + timedelta(hours=1)), ("young", young, timedelta(days=29))):
            rows = [(tenant, f"{kind}-{number:03}", NOON - age) for number in range(count)]
            await self.pool.executemany("INSERT INTO letter VALUES ($1, $2, $3)", rows)

    async def left(self, tenant: str = "acme") -> list[str]:
        rows = await self.pool.fetch("SELECT id FROM letter WHERE tenant = $1 ORDER BY id", tenant)
        return [row["id"] for row in rows]

    def handlers(self) -> list[Handler]:
        return [answer(Expired, self.expired), handle_batch(Remove, self.remove)]

    async def expired(self, query: Expired, ctx: Context[None]) -> list[str]:
        before = query.page.occasion.expired_before
        self.asked_before.add(before)
        rows = await ctx.db.fetch(
            "SELECT id FROM letter WHERE tenant = $1 AND id > $2 AND written < $3 ORDER BY id LIMIT $4",
            ctx.scope.tenant,
            query.page.after or "",
            before,
            query.page.limit,
        )
        return [row["id"] for row in rows]

    async def remove(self, commands: Sequence[Remove], ctx: Context[None]) -> None:
        ids = [command.id for command in commands]
        await ctx.db.execute("DELETE FROM letter WHERE tenant = $1 AND id = ANY($2)", ctx.scope.tenant, ids)
        if self.fails_at in ids:
            raise self.error

    def hands(self, job: MaintenanceJob, handlers: Sequence[Handler] | None = None) -> RunHands:
        return self.shop.hands(job, handlers=handlers or self.handlers())

    async def started(self, job: MaintenanceJob) -> tuple[Scheduler, ClaimedRun]:
        scheduler = await Schedulers(self.pool, self.shop.clock).start(job)
        self.shop.clock.move(minutes=1)
        await scheduler.make_runs()
        (run,) = await scheduler.claim(1)
        return scheduler, run

    async def audited(self) -> list[dict[str, Any]]:
        rows = await self.pool.fetch("SELECT * FROM tidegate.audit ORDER BY seq")
        return [dict(row) | {"parameters": json.loads(row["parameters"])} for row in rows]


@pytest.fixture
def archive(pool: Pool) -> Archive:
    return Archive(pool)


async def test_what_is_past_its_retention_goes_in_chunks_and_nothing_else(archive: Archive) -> None:
    """What is younger stays, another tenant's too; a chunk of four at a time, so that nobody waits for long."""
    await archive.fill(old=10, young=3)
    await archive.fill(tenant="zebra", old=2)
    _, run = await archive.started(letters())

    assert await work_off(archive.hands(letters()), run) is RunState.DONE

    assert await archive.left() == ["young-000", "young-001", "young-002"]
    assert await archive.left("zebra") == ["old-000", "old-001"]
    assert archive.asked_before == {run.scheduled_at - MONTH}
    assert [row["parameters"]["items"] for row in await archive.audited()] == [4, 4, 2]


async def test_removal_of_what_is_somebodys_is_audited_without_it(archive: Archive) -> None:
    """Who asks where the letters went finds job, run, tenant, how many and by which rule; of their content nothing."""
    await archive.fill(old=3)
    _, run = await archive.started(letters())
    await work_off(archive.hands(letters()), run)

    rows = await archive.audited()

    assert len(rows) == 1
    row = rows[0]
    assert (row["actor"], row["action"], row["target"]) == (
        "job tests.old-letters",
        "maintenance:remove",
        "tests.old-letters",
    )
    assert (row["tenant"], row["outcome"], row["role"]) == ("acme", "done", None)
    assert row["parameters"] == {
        "run": run.id,
        "attempt": 1,
        "items": 3,
        "retention": "30 days, 0:00:00",
        "expired_before": (run.scheduled_at - MONTH).isoformat(),
    }
    assert "old-00" not in str(row)


async def test_what_is_nobodys_is_removed_without_a_word(archive: Archive) -> None:
    """An audit full of cleaned caches would hide what matters; a night without anything old is no deed either."""
    await archive.fill(old=3)
    job = letters(is_sensitive=False)
    _, run = await archive.started(job)
    await work_off(archive.hands(job), run)

    sensitive = letters(code="again")
    _, nothing = await archive.started(sensitive)
    assert await work_off(archive.hands(sensitive), nothing) is RunState.DONE
    assert await archive.audited() == []


async def test_chunk_its_checkpoint_and_its_audit_are_one_transaction(archive: Archive) -> None:
    """The second chunk breaks after its DELETE: all of it is there, and the audit knows of the first alone. The retry
    goes on behind that."""
    await archive.fill(old=6)
    archive.fails_at = "old-005"
    job = letters(partial_failure="stop")
    scheduler, run = await archive.started(job)

    assert await work_off(archive.hands(job), run) is RunState.FAILED
    assert await archive.left() == ["old-004", "old-005"]
    assert await archive.shop.cursor() == "old-003"
    assert [row["parameters"]["items"] for row in await archive.audited()] == [4]

    archive.fails_at = None
    (again,) = await scheduler.claim(1)
    assert await work_off(archive.hands(job), again) is RunState.DONE
    assert await archive.left() == []
    told = [(row["parameters"]["attempt"], row["parameters"]["items"]) for row in await archive.audited()]
    assert told == [(1, 4), (2, 2)]


async def test_item_that_cannot_be_removed_holds_up_no_other(archive: Archive) -> None:
    """By default a run goes on past it, the audit counts what went, and the next run tries it again."""
    await archive.fill(old=6)
    archive.fails_at = "old-001"
    _, run = await archive.started(letters())

    assert await work_off(archive.hands(letters()), run) is RunState.DONE
    assert await archive.left() == ["old-001"]
    assert [row["parameters"]["items"] for row in await archive.audited()] == [3, 2]

    archive.fails_at = None
    _, tomorrow = await archive.started(letters())
    await work_off(archive.hands(letters()), tomorrow)
    assert await archive.left() == []


async def test_holder_that_lost_its_lease_removes_nothing_and_audits_nothing(archive: Archive) -> None:
    """Frozen in the middle of a chunk, while another has taken over: its DELETE goes with its transaction."""
    await archive.fill(old=3)
    job = letters()
    scheduler, run = await archive.started(job)

    async def slow(commands: Sequence[Remove], ctx: Context[None]) -> None:
        await archive.remove(commands, ctx)
        await forget_lease(archive.pool)
        await scheduler.end_stalled(await scheduler.look())

    hands = archive.hands(job, [answer(Expired, archive.expired), handle_batch(Remove, slow)])
    assert await work_off(hands, run) is None

    assert await archive.left() == ["old-000", "old-001", "old-002"]
    assert await archive.audited() == []


async def test_host_whose_clock_is_ahead_removes_nothing_early(archive: Archive) -> None:
    """A machine that believes it is next year makes next year's run now; the database's time bounds what is old."""
    await archive.fill(old=1)
    async with archive.pool.acquire() as connection:
        now: datetime = await connection.fetchval("SELECT now()")
    archive.shop.clock.at = now + timedelta(days=400)
    _, run = await archive.started(letters())
    await work_off(archive.hands(letters()), run)

    (before,) = archive.asked_before
    assert before is not None
    assert now - MONTH <= before < now - MONTH + timedelta(hours=1)


async def test_cancelling_beside_a_sensitive_chunk_does_not_deadlock(archive: Archive) -> None:
    """Both write the run and the audit: in one order, or Postgres would have to break one of them off."""
    await archive.fill(old=3)
    job = letters()
    _, run = await archive.started(job)
    async with archive.pool.acquire() as other, other.transaction():
        # As `tidegate jobs cancel` does: first the run's row, last the audit's end.
        await other.execute("SELECT FROM tidegate.job_run WHERE id = $1 FOR UPDATE", run.id)
        at_work = asyncio.create_task(work_off(archive.hands(job), run))
        await waiting_for_a_lock(archive.pool)
        await other.execute("SELECT FROM tidegate.audit_head FOR UPDATE")

    assert await at_work is RunState.DONE
    assert await archive.left() == []


async def waiting_for_a_lock(pool: Pool) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(30):
        while not await pool.fetchval(waits):
            await asyncio.sleep(0.02)  # a lock that is waited for tells nobody


async def test_what_was_removed_is_not_remembered_for_long(archive: Archive) -> None:
    """The name of what is gone would be kept for as long as the history of runs: a day is enough for retries. What
    could not be removed is met again by the next night, which notes it anew."""
    await archive.fill(old=2)
    archive.fails_at = "old-001"
    job = letters()
    scheduler, run = await archive.started(job)
    history = History(archive.pool, archive.shop.clock, scheduler.jobs)
    await work_off(archive.hands(job), run)
    await archive.pool.execute("UPDATE tidegate.job_item SET decided_at = $1", archive.shop.clock.now())

    archive.shop.clock.move(hours=23)
    await history.forget()
    assert len(await archive.shop.items()) == 2
    archive.shop.clock.move(hours=2)
    await history.forget()
    assert await archive.shop.items() == []


async def test_dry_run_tells_what_would_go_and_removes_nothing(archive: Archive) -> None:
    """Asked before the first night: how many, in how many transactions, from which to which."""
    await archive.fill(old=10, young=3)
    job = letters(is_sensitive=False)

    told = await preview(archive.hands(job), job, Supposed(scope=ACME, at=NOON))

    assert (told.items, told.chunks, told.passed_over) == (10, 3, 0)
    assert (told.first, told.last, told.expired_before) == ("old-000", "old-009", NOON - MONTH)
    assert len(await archive.left()) == 13
    for table in ("job", "job_run", "job_item", "job_checkpoint", "lease", "audit"):
        assert await archive.pool.fetchval(f"SELECT count(*) FROM tidegate.{table}") == 0, table


async def test_dry_run_of_a_sensitive_job_names_nothing(archive: Archive) -> None:
    """It asks no permission, so it tells numbers alone; of a tenant without old letters none."""
    await archive.fill(old=1)
    job = letters(scopes=[ACME, ZEBRA], unit="item")

    full, empty = [await preview(archive.hands(job), job, Supposed(scope=scope, at=NOON)) for scope in (ACME, ZEBRA)]

    assert (full.items, full.first, full.last) == (1, None, None)
    assert (empty.items, empty.chunks, empty.first) == (0, 0, None)


async def test_query_that_writes_is_stopped_by_postgres_in_a_dry_run(archive: Archive) -> None:
    """That nothing is removed must not hang on the application's good manners."""
    await archive.fill(old=2)
    job = letters()

    async def greedy(query: Expired, ctx: Context[None]) -> list[str]:
        await ctx.db.execute("DELETE FROM letter")
        return []

    hands = archive.hands(job, [answer(Expired, greedy), handle_batch(Remove, archive.remove)])
    with pytest.raises(QueryFailed, match="job 'old-letters': its query failed: ReadOnlySQLTransactionError") as raised:
        await preview(hands, job, Supposed(scope=ACME, at=NOON))

    assert isinstance(raised.value.__cause__, asyncpg.ReadOnlySQLTransactionError)
    assert len(await archive.left()) == 2


async def test_what_is_away_costs_no_attempt(archive: Archive) -> None:
    """The disk with the letters' files is not mounted: the run waits, and nothing is given up."""
    await archive.fill(old=2)
    archive.fails_at, archive.error = "old-001", RetryLater("the disk is away")
    archive.shop.answers = False
    _, run = await archive.started(letters())

    assert await work_off(archive.hands(letters()), run) is RunState.DUE
    assert await archive.left() == ["old-000", "old-001"]
    assert await archive.shop.items() == []


async def test_rule_in_the_data_gives_no_time(archive: Archive) -> None:
    """Each export has its own end: the occasion has nothing to say, and the audit tells the rule in words."""
    await archive.fill(old=1)
    job = letters(retention=ByRule("each letter's own end"))

    async def all_of_them(query: Expired, ctx: Context[None]) -> list[str]:
        assert query.page.occasion.expired_before is None
        return [each for each in await archive.left() if each > (query.page.after or "")]

    _, run = await archive.started(job)
    await work_off(archive.hands(job, [answer(Expired, all_of_them), handle_batch(Remove, archive.remove)]), run)

    (row,) = await archive.audited()
    assert row["parameters"]["retention"] == "each letter's own end"
    assert "expired_before" not in row["parameters"]
