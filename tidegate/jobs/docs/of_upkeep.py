"""What is particular to Tidegate's own upkeep: jobs by the clock that do a round, and ask nobody for items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_upkeep import UPKEEP_LEASE_TTL
from tidegate.jobs.docs import of_clock
from tidegate.jobs.docs.sheet import Sheet, code
from tidegate_kernel import logs

LOGS = tuple(each for each in of_clock.LOGS if each not in (logs.RUN_BATCH, logs.RUN_ITEM_FAILED))
FAILURES = tuple(each for each in of_clock.FAILURES if each != "items")

trigger = of_clock.trigger
input_rows = of_clock.input_rows


def schedule(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield from of_clock.times(sheet, job)
    yield of_clock.lock(sheet, job, UPKEEP_LEASE_TTL)
    yield sheet.point("batch_size", "batch_size.upkeep")
    yield sheet.point("max_duration", "max_duration.upkeep", limit=sheet.span(job.max_duration))


def request_models(sheet: Sheet, _: ClockJob) -> str:
    return sheet.say("request.upkeep")


def algorithm(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield sheet.say("step.clock.lock", key=code(of_clock.lock_of(sheet.app, job)))
    yield of_clock.scope_step(sheet, job)
    yield sheet.say("step.upkeep.round") + of_clock.rule_of(sheet, job)
    yield sheet.say("step.upkeep.store")
    yield sheet.say("step.clock.end")


def transaction(sheet: Sheet, _: ClockJob) -> Iterator[str]:
    for label in ("unit", "stored", "external", "partial_failure"):
        yield sheet.point(label, f"{label}.upkeep")


def idempotency(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield sheet.point("restart", "restart.upkeep")
    yield sheet.point("duplicate", "duplicate.upkeep")
    run = {"runs": job.run_attempts, "delay": sheet.span(job.run_retry_delay)}
    yield sheet.point("repeatable", "repeatable.upkeep", **run)
    yield sheet.point("poison", "poison.upkeep")


def logs_of(_: ClockJob) -> Sequence[str]:
    return LOGS


def checkpoint_of(_: ClockJob) -> str:
    return "none"


def metrics(job: ClockJob) -> Sequence[tuple[str, str]]:
    absent = ("items", "checkpoint_moved", "outbox", "outbox_age")
    told = [(what, metric) for what, metric in of_clock.metrics(job) if what not in absent]
    return [*told, ("processed", "tidegate_run_items_total")]


def alerts(job: ClockJob) -> Sequence[tuple[str, str]]:
    return [(what, each) for what, each in of_clock.alerts(job) if "run_items" not in each]
