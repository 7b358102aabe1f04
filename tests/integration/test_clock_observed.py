"""What is seen of jobs by the clock: logs, metrics, a span a run, the status, and the driver of applications' tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from tests.integration.clockwork import NOON, Schedulers, Workshop, hosting, minutely, until
from tidegate import App, Context, Every, Page, Rejected, ScheduledJob, Scope, answer, handle, testing
from tidegate.console.clock_status import clock_statuses
from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate.jobs.clockwork.success import Successes
from tidegate_kernel import logs
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


@pytest.fixture
def shop(pool: Pool) -> Workshop:
    return Workshop(pool)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[ReadableSpan, ...]]:
    """Spans that ended, of a provider of this test's own."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def ended_run(pool: Pool, job: int, scope: Scope, at: datetime, **more: object) -> None:
    """A run of the past that ended well, unless `more` says otherwise."""
    row = {"state": "done", "parameters": "{}", "is_replay": False} | more
    await pool.execute(
        """
        INSERT INTO tidegate.job_run (
            job, tenant, brand, scheduled_at, due_at, trigger, lock_name, finished_at, state, parameters, is_replay
        )
        VALUES ($1, $2, $3, $4, $4, 'manual', '-', $4, $5, $6, $7)
        """,
        job,
        scope.tenant,
        scope.brand,
        at,
        *row.values(),
    )


async def run_of(shop: Workshop, job: ScheduledJob, metrics: Metrics) -> tuple[RunState | None, str]:
    """The next run of the job; returns how it ended, and its correlation id."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    state = await work_off(replace(shop.hands(job), metrics=metrics), run)
    return state, str(run.correlation_id)


async def test_run_is_told_by_logs_metrics_and_one_span(
    shop: Workshop, spans: Callable[[], tuple[ReadableSpan, ...]]
) -> None:
    """Whoever looks for one run finds it in all three, by its number and its correlation id."""
    await shop.prepare(acme=5)
    metrics = Metrics()
    job = minutely(batch_size=2)

    with capture_logs() as told:
        state, correlation_id = await run_of(shop, job, metrics)

    assert state is RunState.DONE
    events = [line["event"] for line in told]
    assert (events[0], events[-1]) == (logs.RUN_STARTED, logs.RUN_ENDED)
    assert [line["checkpoint"] for line in told if line["event"] == logs.RUN_BATCH] == ["o001", "o003", "o004"]
    assert told[-1]["checkpoint"] == "o004"
    assert sample(metrics, "tidegate_run_items_total", job="check", outcome="processed") == 5
    assert sample(metrics, "tidegate_run_seconds_count", job="check") == 1
    assert sample(metrics, "tidegate_run_checkpoint_timestamp_seconds", job="check") == shop.clock.now().timestamp()
    (span,) = spans()
    attributes = dict(span.attributes or {})
    assert attributes["tidegate.correlation_id"] == correlation_id
    assert (attributes["tidegate.tenant"], attributes["tidegate.outcome"]) == ("acme", "done")
    assert attributes["tidegate.run"] == await shop.pool.fetchval("SELECT id FROM tidegate.job_run")


async def test_run_that_failed_tells_where_it_stands(shop: Workshop) -> None:
    """What a retry goes on behind is in the line that says why the run ended."""
    await shop.prepare(acme=5)

    async def refuse(order: str, _: Context[None]) -> None:
        if order == "o003":
            raise Rejected("not this one")

    shop.on_order = refuse
    metrics = Metrics()

    with capture_logs() as told:
        state, _ = await run_of(shop, minutely(batch_size=2), metrics)

    assert state is RunState.FAILED
    assert (told[-1]["event"], told[-1]["checkpoint"]) == (logs.RUN_FAILED, "o002")
    assert sample(metrics, "tidegate_run_checkpoint_timestamp_seconds", job="check") == shop.clock.now().timestamp()


async def test_success_of_the_scope_that_has_waited_longest_is_held_to_the_sla(shop: Workshop) -> None:
    """Nineteen tenants with a fresh report hide no twentieth without one; nor does a run that was told something, or
    that did single items again."""
    scopes = [Scope("acme"), Scope("zebra"), Scope("gone")]
    job = minutely(scopes=scopes[:2], freshness_sla=timedelta(hours=26))
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    (number,) = scheduler.jobs
    hour = timedelta(hours=1)
    for scope, ended, more in (
        (scopes[0], NOON - hour, {}),
        (scopes[1], NOON - 30 * hour, {}),
        (scopes[1], NOON - 2 * hour, {"parameters": '{"limit": "1"}'}),
        (scopes[1], NOON - hour, {"is_replay": True}),
        (scopes[1], NOON - hour, {"state": "failed"}),
        (scopes[2], NOON - 100 * hour, {}),
    ):
        await ended_run(shop.pool, number, scope, ended, **more)
    metrics = Metrics()

    await Successes(shop.pool, scheduler.jobs, scheduler.known_scopes, metrics).measure()

    oldest = sample(metrics, "tidegate_run_last_success_timestamp_seconds", job="check")
    assert oldest == (NOON - 30 * hour).timestamp()
    assert sample(metrics, "tidegate_freshness_sla_seconds", job="check") == 26 * 3600


async def test_before_its_first_success_a_scope_waits_since_its_first_run_was_due(shop: Workshop) -> None:
    """A job that has failed from its first night on has no success that could be old."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(minutely(freshness_sla=timedelta(hours=1)))
    metrics = Metrics()
    successes = Successes(shop.pool, scheduler.jobs, scheduler.known_scopes, metrics)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    first = shop.clock.now()
    shop.clock.move(minutes=5)
    await scheduler.make_runs()

    await successes.measure()

    assert sample(metrics, "tidegate_run_last_success_timestamp_seconds", job="check") == first.timestamp()


async def test_host_measures_the_successes_of_its_jobs(shop: Workshop) -> None:
    """The metric is told by every process that runs the job, without being asked."""
    await shop.prepare(acme=1)
    job = minutely(freshness_sla=timedelta(hours=1))
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    metrics = Metrics()
    host = ClockHost(
        scheduler,
        {number: shop.hands(job) for number in scheduler.jobs},
        clock=shop.clock,
        metrics=metrics,
        pace=Pace(),
        successes=Successes(shop.pool, scheduler.jobs, scheduler.known_scopes, metrics),
    )

    async with hosting(shop, host):

        async def is_told() -> bool:
            return sample(metrics, "tidegate_run_last_success_timestamp_seconds", job="check") > 0

        await until(is_told)


async def test_failed_run_is_told_as_failed(shop: Workshop, spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    """An alert on `run.failed` must not have to read what a run.completed says of its state."""
    await shop.prepare(acme=1)

    async def refuse(*_: object) -> None:
        raise Rejected("not this one")

    shop.on_order = refuse
    metrics = Metrics()
    with capture_logs() as told:
        state, _ = await run_of(shop, minutely(), metrics)

    assert state is RunState.FAILED
    assert [line["event"] for line in told][-1] == logs.RUN_FAILED
    assert sample(metrics, "tidegate_runs_total", job="check", outcome="failed") == 1
    assert not spans()[0].status.is_ok


async def test_run_that_waits_for_a_lock_is_counted(shop: Workshop) -> None:
    """Contention that nobody sees looks like a job that does not run."""
    await shop.prepare(acme=1)
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        at_work.set()
        await go_on.wait()

    shop.on_order = hang
    job = minutely(overlap="wait")
    host = await shop.host(job, pace=Pace())
    shop.clock.move(minutes=1)
    async with hosting(shop, host):
        await asyncio.wait_for(at_work.wait(), 30)
        shop.clock.move(minutes=1)
        host._wake.set()

        async def is_counted() -> bool:
            return sample(host._metrics, "tidegate_run_lock_contention_total", job="check") > 0

        await until(is_counted)
        go_on.set()


@dataclass(frozen=True)
class Due:
    page: Page


@dataclass(frozen=True)
class Pay:
    name: str


async def due(query: Due, _: Context[None]) -> list[str]:
    return [name for name in ("p1", "p2", "p3") if name > (query.page.after or "")]


async def pay(command: Pay, ctx: Context[None]) -> None:
    if command.name == "p2":
        raise Rejected("no account")
    ctx.publish("paid", {"name": command.name}, key=command.name)


PAYING = App(
    service="payments",
    owner="tests",
    jobs=[],
    handlers=[answer(Due, due), handle(Pay, pay)],
    clock_jobs=[
        ScheduledJob(
            code="pay",
            trigger=Every(timedelta(hours=1)),
            query=Due,
            command=Pay,
            key=str,
            scopes=[Scope("acme")],
            runbook="-",
            partial_failure="continue",
        )
    ],
)


async def test_driver_of_applications_runs_jobs_by_the_clock(pool: Pool, database: str) -> None:
    """A service's own tests run its nightly job as its worker does, and see what it published."""
    occasion = datetime(2026, 5, 1, 2, tzinfo=UTC)
    async with testing.run(PAYING, db=database) as t:
        first = await t.run_job("pay", tenant="acme", at=occasion)
        again = await t.run_job("pay", tenant="acme", at=occasion)
        names = [event.data["name"] for event in t.published("paid")]
    async with pool.acquire() as connection:
        (status,) = await clock_statuses(connection, PAYING)

    assert (first.state, first.processed, first.failed) == (RunState.DONE, 2, 1)
    assert (again.processed, again.skipped, again.failed) == (0, 2, 1)
    assert names == ["p1", "p3"]
    assert (status.due, status.running, status.failed_items, status.last_state) == (0, 0, 1, RunState.DONE)
