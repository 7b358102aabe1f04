"""What is particular to jobs on Kafka topics: consumers, projections, folds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.app import App
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job, ProjectionJob, acts_once, batch_size_of
from tidegate.jobs.docs.models import fields_of, type_text
from tidegate.jobs.docs.requests import calls_of, handler_names, work_of
from tidegate.jobs.docs.sheet import Sheet, code, codes, kind_of
from tidegate_kernel import logs
from tidegate_kernel.event import JobCode

LOGS = (
    logs.PARTITION_OWNED,
    logs.BATCH_SETTLED,
    logs.BATCH_HELD_BACK,
    logs.DEAD_LETTER,
    logs.FLOOD_STOPPED,
    logs.BREAKER_OPENED,
    logs.PARTITION_LOST,
)
OUTBOX = (("outbox", "tidegate_outbox_waiting"), ("outbox_age", "tidegate_outbox_oldest_seconds"))
"""What a job publishes waits there, with that of all others."""
FAILURES = ("behind", "letters", "blocked", "outage")


def lock_of(app: App, job: Job) -> str:
    """The scope of the lock, as the registry names it."""
    return f"tidegate.position({app.service}/{job.code}, {{topic}}, {{partition}})"


def trigger(sheet: Sheet, job: Job) -> str:
    return sheet.say("trigger.topics", topics=codes([topic.name for topic in job.topics]))


def schedule(sheet: Sheet, job: Job) -> Iterator[str]:
    group = code(sheet.app.group(JobCode(job.code)))
    yield sheet.point("schedule", "schedule.topics", group=group)
    yield sheet.point("lock", "lock.topics", key=code(lock_of(sheet.app, job)), group=group)
    yield sheet.point("batch_size", "batch_size.topics", size=batch_size_of(job))
    if isinstance(job, ConsumerJob):
        limit = sheet.span(job.handler_timeout)
        yield sheet.point("max_duration", "max_duration.consumer", limit=limit, silence=sheet.span(job.silence_limit))
    else:
        yield sheet.point("max_duration", "max_duration.topics")


def input_rows(sheet: Sheet, job: Job) -> Iterator[Sequence[str]]:
    for name, where in (("tenant", "TenantId"), ("brand", "BrandId")):
        attributes = [getattr(topic.scope, name) for topic in job.topics]
        named = codes([each for each in attributes if each is not None])
        source = sheet.say("source.envelope", names=named) if named else sheet.say("source.no_scope")
        required = sheet.say("no" if None in attributes else "yes")
        yield where, code("str"), required, source, sheet.say(f"field.{name}")
    yield "EventId", code("str"), sheet.say("yes"), sheet.say("source.event_id"), sheet.say("field.event_id")
    for model in dict.fromkeys(route.model for route in job.events):
        types = codes([route.type for route in job.events if route.model is model])
        for field in fields_of(model):
            said = "" if field.description is None else sheet.told(field.description)
            source = sheet.say("source.event", types=types)
            yield field.name, code(field.type), sheet.say("yes" if field.is_required else "no"), source, said


def request_models(sheet: Sheet, job: Job) -> str:
    models = codes([type_text(route.model) for route in job.events])
    if isinstance(job, ConsumerJob):
        return sheet.say("request.consumer", models=models, commands=codes([work_of(job, each) for each in job.events]))
    return sheet.say("request.topics", models=models)


def algorithm(sheet: Sheet, job: Job) -> Iterator[str]:
    kind = kind_of(job)
    yield sheet.say("step.topics.lock", key=code(lock_of(sheet.app, job)))
    across = job.across_tenants if isinstance(job, FoldJob) else None
    yield sheet.say("step.topics.scope") if across is None else sheet.say("step.topics.across", reason=across)
    yield sheet.say("step.topics.load", size=batch_size_of(job))
    yield sheet.say(f"step.{kind}.apply", works="; ".join(_works(sheet.app, job)), sink=_sink(job))
    yield sheet.say(f"step.{kind}.store")
    yield sheet.say("step.consumer.facts" if isinstance(job, ConsumerJob) else "step.projection.facts", sink=_sink(job))
    yield sheet.say("step.topics.end")


def transaction(sheet: Sheet, job: Job) -> Iterator[str]:
    kind = kind_of(job)
    if isinstance(job, ProjectionJob) and acts_once(job):
        kind = "stable"
    yield sheet.point("unit", f"unit.{kind}")
    yield sheet.point("stored", f"stored.{kind}", sink=_sink(job))
    yield sheet.point("external", f"external.{kind}", sink=_sink(job), calls=calls_of(sheet))
    yield sheet.point("partial_failure", f"partial.{_order(job)}", topic=code(_dlq(sheet, job)))


def idempotency(sheet: Sheet, job: Job) -> Iterator[str]:
    yield sheet.point("restart", "restart.topics")
    if acts_once(job):
        horizon = job.dedupe_horizon
        kept = sheet.say("horizon.default") if horizon is None else sheet.say("horizon", span=sheet.span(horizon))
        yield sheet.point("duplicate", "duplicate.claim", kept=kept)
    else:
        yield sheet.point("duplicate", "duplicate.version")
    yield sheet.point("repeatable", "repeatable.topics", **retry_facts(sheet, job))
    yield sheet.point("poison", f"poison.{_order(job)}", topic=code(_dlq(sheet, job)), job=job.code)


def logs_of(_: Job) -> Sequence[str]:
    return LOGS


def checkpoint_of(_: Job) -> str:
    return "position"


def metrics(job: Job) -> Sequence[tuple[str, str]]:
    own = [
        ("duration", "tidegate_batch_seconds"),
        ("processed", "tidegate_records_total"),
        ("processed", "tidegate_events_applied_total"),
        ("skipped", "tidegate_events_duplicate_total"),
        ("skipped", "tidegate_events_skipped_total"),
        ("failed", "tidegate_dead_letters_total"),
        ("held_back", "tidegate_batches_held_back_total"),
        ("backlog", "tidegate_records_behind"),
        ("lag", "tidegate_seconds_behind"),
        ("age", "tidegate_last_event_age_seconds"),
        ("checkpoint", "tidegate_position_offset"),
        ("contention", "tidegate_partitions_taken_total"),
        ("outage", "tidegate_breaker_open"),
    ]
    if isinstance(job, ConsumerJob):
        waiting = ("events_full", "tidegate_event_backlog_full")
        return [*own, ("parked", "tidegate_events_parked_total"), *OUTBOX, waiting]
    late = [("freshness", "tidegate_reader_seconds_behind"), ("freshness", "tidegate_freshness_burn_rate")]
    return [*own, *late, ("sla", "tidegate_freshness_sla_seconds")]


def alerts(job: Job) -> Sequence[tuple[str, str]]:
    mine = f'{{job="{job.code}"}}'
    late = [("backlog", f"tidegate_seconds_behind{mine} > 300")]
    if isinstance(job, ProjectionJob | FoldJob):
        seconds = f"{job.freshness_sla.total_seconds():g}"
        late = [("freshness", f"tidegate_reader_seconds_behind{mine} > {seconds}")]
    return [
        ("stuck", f"tidegate_partition_stalled{mine} > 0 or tidegate_partition_blocked{mine} > 0"),
        *late,
        ("errors", f"increase(tidegate_dead_letters_total{mine}[15m]) > 0"),
        ("outage", f"tidegate_breaker_open{mine} > 0"),
    ]


def retry_facts(sheet: Sheet, job: Job) -> dict[str, object]:
    policy = job.retry
    return {
        "name": policy.name,
        "attempts": policy.attempts,
        "unexpected": policy.unexpected_attempts,
        "crashes": policy.crash_attempts,
        "first": sheet.span(policy.first_delay),
        "longest": sheet.span(policy.longest_delay),
    }


def _works(app: App, job: Job) -> Iterator[str]:
    """Each event type with what becomes of it."""
    for route in job.events:
        handled = handler_names(app, route.function) if isinstance(job, ConsumerJob) else []
        yield " → ".join([code(route.type), code(work_of(job, route)), *map(code, handled)])


def _order(job: Job) -> str:
    if isinstance(job, ProjectionJob):
        return "projection"
    return job.order


def _sink(job: Job) -> str:
    return "" if isinstance(job, ConsumerJob) else f"{job.sink.store} {code(job.sink.name)}"


def _dlq(sheet: Sheet, job: Job) -> str:
    return sheet.app.dlq_topic(JobCode(job.code))
