"""What is particular to jobs by the clock: scheduled, maintenance, provider synchronisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_job import ByRule, MaintenanceJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.runs import LEASE_TTL
from tidegate.jobs.clockwork.schedule import Cron, Every
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate.jobs.docs.models import fields_of
from tidegate.jobs.docs.of_topics import OUTBOX
from tidegate.jobs.docs.requests import calls_of, function_name, handler_names, requests_of
from tidegate.jobs.docs.sheet import Sheet, code, codes
from tidegate_kernel import logs

LOGS = (
    logs.RUN_STARTED,
    logs.RUN_BATCH,
    logs.RUN_ITEM_FAILED,
    logs.RUN_ENDED,
    logs.RUN_FAILED,
    logs.RUN_STALLED,
    logs.RUN_LOST,
    logs.RUNS_SKIPPED,
)
FAILURES = ("run_failed", "run_stalled", "overlap", "items", "run_due")


def logs_of(job: ClockJob) -> Sequence[str]:
    return (*LOGS, logs.PROVIDER_THROTTLED, logs.BREAKER_OPENED) if isinstance(job, ProviderSyncJob) else LOGS


def checkpoint_of(job: ClockJob) -> str:
    return "question" if isinstance(job, ProviderSyncJob) else "key"


def lock_of(app: App, job: ClockJob) -> str:
    """The scope of the lock, as the registry names it."""
    scope = "/" if isinstance(job.scopes, AcrossScopes) else "{tenant}/{brand}"
    return f"job:{app.service}/{job.lock_key or job.code}/{scope}"


def trigger(sheet: Sheet, job: ClockJob) -> str:
    match job.trigger:
        case Cron(expression=expression, zone=zone):
            return sheet.say("trigger.cron", cron=code(expression), zone=code(zone), job=job.code)
        case Every(interval=interval):
            return sheet.say("trigger.every", span=sheet.span(interval), job=job.code)
        case None:
            return sheet.say("trigger.manual", job=job.code)


def schedule(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield from times(sheet, job)
    yield lock(sheet, job, LEASE_TTL)
    yield sheet.point("batch_size", "batch_size.clock", size=job.batch_size)
    limit = sheet.span(job.max_duration)
    yield sheet.point("max_duration", "max_duration.clock", limit=limit, handler=sheet.span(job.handler_timeout))


def times(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    """When it runs, and what becomes of an occurrence that has no run of its own."""
    yield f"- **{sheet.say('label.schedule')}**: {_schedule(sheet, job)}"
    if job.trigger is not None:
        yield sheet.point("missed", f"missed.{job.catch_up}", limit=job.catch_up_limit)
        yield sheet.point("overlap", f"overlap.{job.overlap}")


def lock(sheet: Sheet, job: ClockJob, ttl: timedelta) -> str:
    """The line about its lease of that length."""
    told, renewal = sheet.span(ttl), sheet.span(ttl / 3)
    return sheet.point("lock", "lock.clock", key=code(lock_of(sheet.app, job)), ttl=told, renewal=renewal)


def input_rows(sheet: Sheet, job: ClockJob) -> Iterator[Sequence[str]]:
    is_across = isinstance(job.scopes, AcrossScopes)
    required, source = sheet.say("no" if is_across else "yes"), "source.across" if is_across else "source.scope"
    yield "TenantId", code("str"), required, sheet.say(source), sheet.say("field.tenant")
    yield "BrandId", code("str"), sheet.say("no"), sheet.say(source), sheet.say("field.brand")
    yield "ScheduledAt", code("datetime"), sheet.say("yes"), sheet.say("source.at"), sheet.say("field.scheduled_at")
    for field in fields_of(job.input) if job.input is not None else []:
        said = "" if field.description is None else sheet.told(field.description)
        required = sheet.say("yes" if field.is_required else "no")
        yield field.name, code(field.type), required, sheet.say("source.param", name=field.name), said


def request_models(sheet: Sheet, job: ClockJob) -> str:
    told = sheet.say("request.clock", query=code(requests_of(job.query)), command=code(requests_of(job.command)))
    return told if job.input is None else f"{told} {sheet.say('request.input', model=code(job.input.__name__))}"


def algorithm(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield sheet.say("step.clock.lock", key=code(lock_of(sheet.app, job)))
    yield scope_step(sheet, job)
    query = {"query": code(requests_of(job.query)), "handlers": codes(handler_names(sheet.app, job.query))}
    load = "step.provider.load" if isinstance(job, ProviderSyncJob) else "step.clock.load"
    yield sheet.say(load, size=job.batch_size, key=code(function_name(job.key)), **query)
    command = {"command": code(requests_of(job.command)), "handlers": codes(handler_names(sheet.app, job.command))}
    yield sheet.say("step.clock.apply", **command) + rule_of(sheet, job)
    yield sheet.say("step.clock.store")
    yield sheet.say("step.clock.facts")
    yield sheet.say("step.clock.end")


def scope_step(sheet: Sheet, job: ClockJob) -> str:
    """Whose data a run sees."""
    return f"{sheet.say('step.clock.scope')} {_scopes(sheet, job)}"


def transaction(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    yield sheet.point("unit", f"unit.{job.unit}", size=job.batch_size)
    more = sheet.say("stored.audit") if isinstance(job, MaintenanceJob) and job.is_sensitive else ""
    more += sheet.say("stored.cursor") if isinstance(job, ProviderSyncJob) else ""
    yield sheet.point("stored", "stored.clock", more=more)
    external = "external.provider" if isinstance(job, ProviderSyncJob) else "external.clock"
    yield sheet.point("external", external, calls=calls_of(sheet))
    yield sheet.point("partial_failure", f"partial.{job.partial_failure}", topic=_letters(sheet, job))


def idempotency(sheet: Sheet, job: ClockJob) -> Iterator[str]:
    is_provider = isinstance(job, ProviderSyncJob)
    yield sheet.point("restart", f"restart.provider.{job.checkpoint}" if is_provider else f"restart.{job.checkpoint}")
    own = job.idempotency_key
    if own is None and isinstance(job, ProviderSyncJob):
        named = {"key": code(function_name(job.key)), "version": code(function_name(job.version))}
        yield sheet.point("duplicate", "duplicate.item_version", **named)
    elif own is None:
        yield sheet.point("duplicate", "duplicate.occasion", key=code(function_name(job.key)))
    else:
        yield sheet.point("duplicate", "duplicate.own", key=code(function_name(own)))
    policy = job.retry
    facts = {"name": policy.name, "attempts": policy.attempts, "unexpected": policy.unexpected_attempts}
    delays = {"first": sheet.span(policy.first_delay), "longest": sheet.span(policy.longest_delay)}
    run = {"runs": job.run_attempts, "delay": sheet.span(job.run_retry_delay)}
    yield sheet.point("repeatable", "repeatable.clock", **facts, **delays, **run)
    poison = {"job": job.code, "topic": _letters(sheet, job), "again": _again(sheet, job)}
    yield sheet.point("poison", f"poison.{job.partial_failure}", **poison)


def metrics(job: ClockJob) -> Sequence[tuple[str, str]]:
    own = [
        ("duration", "tidegate_run_seconds"),
        ("runs", "tidegate_runs_total"),
        ("items", "tidegate_run_items_total"),
        ("backlog", "tidegate_runs_due"),
        ("contention", "tidegate_run_lock_contention_total"),
        ("checkpoint_moved", "tidegate_run_checkpoint_timestamp_seconds"),
        ("outage", "tidegate_breaker_open"),
    ]
    if isinstance(job, ProviderSyncJob):
        own.append(("calls", "tidegate_provider_calls_total"))
        own.append(("cursor", "tidegate_provider_synced_until_timestamp_seconds"))
    if job.freshness_sla is not None:
        own.append(("success", "tidegate_run_last_success_timestamp_seconds"))
        own.append(("sla", "tidegate_freshness_sla_seconds"))
    return [*own, *OUTBOX]


def alerts(job: ClockJob) -> Sequence[tuple[str, str]]:
    mine, failed = f'job="{job.code}"', f'{{job="{job.code}",outcome="failed"}}'
    return [
        ("stuck", f'increase(tidegate_runs_total{{{mine},outcome="stalled"}}[1h]) > 0'),
        ("backlog", f"min_over_time(tidegate_runs_due{{{mine}}}[15m]) > 0"),
        ("errors", f"increase(tidegate_runs_total{failed}[1h]) > 0"),
        ("errors", f"increase(tidegate_run_items_total{failed}[1h]) > 0"),
        ("outage", f"tidegate_breaker_open{{{mine}}} > 0"),
        *_late(job),
    ]


def _late(job: ClockJob) -> Iterator[tuple[str, str]]:
    if job.freshness_sla is not None:
        succeeded = f'tidegate_run_last_success_timestamp_seconds{{job="{job.code}"}}'
        yield "success", f"time() - {succeeded} > {job.freshness_sla.total_seconds():g}"


def _again(sheet: Sheet, job: ClockJob) -> str:
    """For how long a quarantined item is left alone: as long as it has the key that it failed under."""
    if job.idempotency_key is not None:
        return sheet.say("again.own", key=code(function_name(job.idempotency_key)))
    return sheet.say("again.item_version" if isinstance(job, ProviderSyncJob) else "again.occasion")


def _letters(sheet: Sheet, job: ClockJob) -> str:
    return code(sheet.app.dlq_topic(job.job_code))


def _schedule(sheet: Sheet, job: ClockJob) -> str:
    jitter = f" {sheet.say('schedule.jitter', span=sheet.span(job.jitter))}" if job.jitter else ""
    match job.trigger:
        case Cron(expression=expression, zone=zone):
            return sheet.say("schedule.cron", cron=code(expression), zone=code(zone)) + jitter
        case Every(interval=interval):
            return sheet.say("schedule.every", span=sheet.span(interval)) + jitter
        case None:
            return sheet.say("schedule.manual")


def _scopes(sheet: Sheet, job: ClockJob) -> str:
    match job.scopes:
        case AcrossScopes(reason=reason):
            return sheet.say("scopes.across", reason=sheet.told(reason))
        case scopes if callable(scopes):
            return sheet.say("scopes.asked", source=code(function_name(scopes)))
        case scopes:
            listed = sorted({"/".join(filter(None, (each.tenant, each.brand))) for each in scopes})
            return sheet.say("scopes.listed", scopes=codes(listed))


def rule_of(sheet: Sheet, job: ClockJob) -> str:
    """What the kind itself lays down beside the handler."""
    match job:
        case MaintenanceJob():
            audited = sheet.say("rule.audited" if job.is_sensitive else "rule.not_audited")
            return f" {_retention(sheet, job)} {audited}"
        case ProviderSyncJob():
            rate = {"calls": job.rate_limit.calls, "per": sheet.span(job.rate_limit.per)}
            rate |= {"failures": job.circuit.failures, "rest": sheet.span(job.circuit.rest)}
            access = codes(sorted("/".join(filter(None, (each.tenant, each.brand))) for each in job.access))
            reach = sheet.span(job.reach_back)
            return f" {sheet.say('rule.provider', provider=code(job.provider), access=access, reach=reach, **rate)}"
        case _:
            return ""


def _retention(sheet: Sheet, job: MaintenanceJob) -> str:
    if isinstance(job.retention, ByRule):
        return sheet.say("rule.by_rule", words=sheet.told(job.retention.words))
    return sheet.say("rule.retention", span=sheet.span(job.retention))
