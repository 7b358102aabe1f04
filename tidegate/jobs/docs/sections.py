"""The eleven sections of a job's document, in the order of the standard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_upkeep import is_upkeep
from tidegate.jobs.clockwork.schedule import Cron, Every
from tidegate.jobs.declaration import ConsumerJob, Job
from tidegate.jobs.docs import of_clock, of_topics, of_upkeep
from tidegate.jobs.docs.coverage import Rule
from tidegate.jobs.docs.sheet import Sheet, code, codes, kind_of, table

_LOOKS: Mapping[str, str] = {
    "behind": "tidegate status",
    "letters": "tidegate dlq stats --job {job}",
    "blocked": "tidegate explain {job}",
    "outage": "tidegate explain {job}",
    "run_failed": "tidegate jobs runs {job}",
    "run_stalled": "tidegate jobs runs {job}",
    "overlap": "tidegate jobs runs {job}",
    "items": "tidegate jobs items {job}",
    "run_due": "tidegate jobs runs {job}",
}


def purpose(sheet: Sheet) -> Iterator[str]:
    job = sheet.job
    if job.purpose is not None:
        yield sheet.told(job.purpose)
        yield ""
    yield sheet.say(f"purpose.{kind_of(job)}", provider=getattr(job, "provider", ""))


def classification(sheet: Sheet) -> Iterator[str]:
    job = sheet.job
    yield sheet.point("service", "service", service=sheet.app.service, owner=job.owner or sheet.app.owner)
    yield sheet.point("type", f"type.{type_of(job)}", kind=type(job).__name__)
    yield f"- **{sheet.say('label.trigger')}**: {_own(sheet).trigger(sheet, job)}"
    yield sheet.point("tier", f"tier.{job.tier}")
    sla = freshness_sla_of(job)
    if sla is not None:
        what = "clock" if isinstance(job, ClockJob) else "topics"
        yield sheet.point("freshness_sla", f"freshness_sla.{what}", span=sheet.span(sla))


def freshness_sla_of(job: Job | ClockJob) -> timedelta | None:
    """How old what its readers see may be, where it promises that."""
    return None if isinstance(job, ConsumerJob) else job.freshness_sla


def type_of(job: Any) -> str:
    """How the standard classifies what makes it run."""
    if not isinstance(job, ClockJob):
        return "topics"
    match job.trigger:
        case Cron():
            return "cron"
        case Every():
            return "every"
        case None:
            return "manual"


def schedule(sheet: Sheet) -> Iterator[str]:
    yield from _own(sheet).schedule(sheet, sheet.job)


def input_model(sheet: Sheet) -> Iterator[str]:
    yield _own(sheet).request_models(sheet, sheet.job)
    yield ""
    columns = [sheet.say(f"column.{name}") for name in ("field", "type", "required", "source", "description")]
    yield from table(columns, list(_own(sheet).input_rows(sheet, sheet.job)))


def algorithm(sheet: Sheet) -> Iterator[str]:
    for number, step in enumerate(_own(sheet).algorithm(sheet, sheet.job), start=1):
        yield f"{number}. {step}"


def transaction(sheet: Sheet) -> Iterator[str]:
    yield from _own(sheet).transaction(sheet, sheet.job)


def idempotency(sheet: Sheet) -> Iterator[str]:
    yield from _own(sheet).idempotency(sheet, sheet.job)


def observability(sheet: Sheet) -> Iterator[str]:
    own, job = _own(sheet), sheet.job
    what = "clock" if isinstance(job, ClockJob) else "topics"
    yield sheet.point("logs", f"logs.{what}", names=codes(own.logs_of(job)))
    yield sheet.point("traces", f"traces.{what}")
    yield sheet.point("checkpoint", f"checkpoint.{own.checkpoint_of(job)}", job=job.code)
    yield f"- **{sheet.say('label.metrics')}**:"
    yield ""
    rows = [[code(metric), sheet.say(f"measure.{what}")] for what, metric in own.metrics(job)]
    yield from table([sheet.say("column.metric"), sheet.say("column.measures")], rows)
    yield ""
    yield f"- **{sheet.say('label.alerts')}**:"
    yield ""
    promised = freshness_sla_of(job)
    sla = "" if promised is None else sheet.span(promised)
    alerts = [[sheet.say(f"alert.{what}", sla=sla), code(condition)] for what, condition in own.alerts(job)]
    yield from table([sheet.say("column.alert"), sheet.say("column.condition")], alerts)


def runbooks(sheet: Sheet) -> Iterator[str]:
    job, found = sheet.job, sheet.evidence.runbook
    link = sheet.say("runbook.missing", path=job.runbook) if found is None else f"[{job.runbook}]({found})"
    rows = [
        [sheet.say(f"failure.{mode}"), code(_LOOKS[mode].format(job=job.code)), link] for mode in _own(sheet).FAILURES
    ]
    yield from table([sheet.say(f"column.{name}") for name in ("failure", "look", "runbook")], rows)


def tests(sheet: Sheet) -> Iterator[str]:
    rows = []
    for rule in Rule:
        covering = sheet.evidence.tests.get(rule, ())
        named = "<br>".join(code(f"{each.file}::{each.test}") for each in covering) or sheet.say("tests.none")
        rows.append([sheet.say(f"case.{rule}"), sheet.say(f"expected.{rule}"), named])
    yield from table([sheet.say(f"column.{name}") for name in ("case", "expected", "tests")], rows)


def references(sheet: Sheet) -> Iterator[str]:
    if not sheet.evidence.references:
        yield sheet.say("references.none")
    for name, link in sheet.evidence.references:
        yield f"- [{name}]({link})"


SECTIONS: Sequence[tuple[str, Callable[[Sheet], Iterator[str]]]] = (
    ("purpose", purpose),
    ("classification", classification),
    ("schedule", schedule),
    ("input", input_model),
    ("algorithm", algorithm),
    ("transaction", transaction),
    ("idempotency", idempotency),
    ("observability", observability),
    ("runbooks", runbooks),
    ("tests", tests),
    ("references", references),
)


def _own(sheet: Sheet) -> ModuleType:
    """What is particular to the job's family."""
    if isinstance(sheet.job, ClockJob):
        return of_upkeep if is_upkeep(sheet.job) else of_clock
    return of_topics
