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

from tests.integration.clockwork import Schedulers, Workshop, hosting, minutely, until
from tidegate import App, Context, Every, Page, Rejected, ScheduledJob, Scope, answer, handle, testing
from tidegate.console.clock_status import clock_statuses
from tidegate.jobs.clockwork.host import Pace
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
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
    """JOBS.md section 6: whoever looks for one run finds it in all three, by its number and its correlation id."""
    await shop.prepare(acme=5)
    metrics = Metrics()
    job = minutely(batch_size=2)

    with capture_logs() as told:
        state, correlation_id = await run_of(shop, job, metrics)

    assert state is RunState.DONE
    events = [line["event"] for line in told]
    assert (events[0], events[-1]) == (logs.RUN_STARTED, logs.RUN_ENDED)
    assert [line["checkpoint"] for line in told if line["event"] == logs.RUN_BATCH] == ["o001", "o003", "o004"]
    assert sample(metrics, "tidegate_run_items_total", job="check", outcome="processed") == 5
    assert sample(metrics, "tidegate_run_seconds_count", job="check") == 1
    assert sample(metrics, "tidegate_run_checkpoint_timestamp_seconds", job="check") == shop.clock.now().timestamp()
    (span,) = spans()
    attributes = dict(span.attributes or {})
    assert attributes["tidegate.correlation_id"] == correlation_id
    assert (attributes["tidegate.tenant"], attributes["tidegate.outcome"]) == ("acme", "done")


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
