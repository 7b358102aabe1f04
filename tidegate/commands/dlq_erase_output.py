"""What is printed of an erasure: a table and lines, or plain values for JSON; of the subject only the kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidegate.commands.options import print_table, tell
from tidegate.commands.readable import counted
from tidegate.console.erasing import ErasurePlan, JobErased, JobPlan

if TYPE_CHECKING:  # its client takes long to import, and every command of the group imports this module
    from tidegate_kernel.kafka_retention import Retention


def print_erasure(
    plan: ErasurePlan, done: Sequence[JobErased] | None, left: int, kept: Mapping[str, Retention | None]
) -> None:
    """What an erasure would reach, or has; the copies in Kafka are named."""
    columns = ["job", "letters", "items", "parked", "edits", "in the outbox", "not looked into"]
    print_table(columns, [_cells(each) for each in plan.jobs], right=columns[2:])
    tell(*_hazards(plan))
    tell(*(f"topic {topic}: copies {_lasting(retention)}; not in our reach" for topic, retention in kept.items()))
    if done is None:
        tell("nothing was erased: add --reason and --yes to do it" if left else "nothing of it is there")
        return
    for job, each in zip(plan.jobs, done, strict=True):
        tell(*_deeds(job, each))
    tell("nothing of it is left" if not left else f"{_left(left)} there now: type it again")


def _left(left: int) -> str:
    return "1 letter, item or parked event is" if left == 1 else f"{left:,} letters, items or parked events are"


def _cells(job: JobPlan) -> list[object]:
    extent = job.extent
    states = ", ".join(f"{count} {state}" for state, count in extent.letters.items()) or "none"
    return [job.origin.job_code, states, extent.items, extent.parked, extent.edits, extent.copies, job.unknown]


def _hazards(plan: ErasurePlan) -> Iterator[str]:
    for job in plan.jobs:
        code, extent = job.origin.job_code, job.extent
        if extent.undecided:
            are = "1 of the letters is" if extent.undecided == 1 else f"{extent.undecided:,} of the letters are"
            yield f"{code}: {are} undecided; erased, nothing of it can ever be replayed"
        if extent.items:
            yield f"{code}: {counted(extent.items, 'failed item')}; erased, no run ever does it again"
        if extent.waiting:
            wait = f"{counted(extent.waiting, 'event')} {'waits' if extent.waiting == 1 else 'wait'}"
            yield f"{code}: {wait} in the same sequences; those of others lose what they wait for"
        if extent.parked:
            yield f"{code}: {counted(extent.parked, 'parked event')} will never be handled"
        if job.unknown:
            decode = "does not decode and was" if job.unknown == 1 else "do not decode and were"
            yield f"{code}: {counted(job.unknown, 'letter')} {decode} not looked into: --key finds what it names"
    if plan.blind:
        yield f"not looked into, they declare no {plan.subject.kind}: {', '.join(plan.blind)}"
    if plan.published:
        wait = "waits" if plan.published == 1 else "wait"
        yield f"{counted(plan.published, 'event')} with this key, published by handlers, {wait} for Kafka: not erased"


def _deeds(job: JobPlan, done: JobErased) -> Iterator[str]:
    code, erased = job.origin.job_code, done.erased
    letters = sum(erased.letters.values())
    yield (
        f"{code}: erased {counted(letters, 'letter')}, {counted(erased.parked, 'parked event')}, "
        f"{counted(erased.edits, 'edit')}, in the outbox {erased.copies:,} of the copies"
    )
    if erased.items:
        yield f"{code}: erased {counted(erased.items, 'item')}: no run ever does what was one"
    if done.loose:
        wait = "waits with no letter before it" if done.loose == 1 else "wait with no letter before them"
        yield (
            f"{code}: {counted(done.loose, 'event')} {wait} any more; a run over letters of the job handles what is so "
            f"first: 'tidegate dlq replay --job {code} --reason … --yes'"
        )
    for letter in erased.busy:
        yield f"{code}: letter {letter} is just being replayed and was left alone: type it again when the run has ended"


def _lasting(retention: Retention | None) -> str:
    if retention is None:
        return "stay as long as its retention says, which Kafka does not tell now"
    if retention.kept is None:
        told = "stay for ever"
        return f"{told}, unless a later record of their key replaces them" if retention.is_compacted else told
    return f"stay for up to {_spelled(retention.kept + retention.segment)} after they were written"


def _spelled(period: timedelta) -> str:
    hours = -(-period // timedelta(hours=1))
    return f"{hours} h" if hours < 48 else f"{-(-hours // 24)} days"


def plain_erasure(
    plan: ErasurePlan, done: Sequence[JobErased] | None, left: int, kept: Mapping[str, Retention | None]
) -> dict[str, Any]:
    """The same for JSON."""
    results: Sequence[JobErased | None] = done or [None] * len(plan.jobs)
    return {
        "by": plan.subject.kind,
        "is_done": done is not None,
        "jobs": [_plain_job(job, result) for job, result in zip(plan.jobs, results, strict=True)],
        "not_looked_into": list(plan.blind),
        "published_events": plan.published,
        "left": left,
        "topics": [{"topic": topic, "copies": _lasting(retention)} for topic, retention in kept.items()],
    }


def _plain_job(job: JobPlan, done: JobErased | None) -> dict[str, Any]:
    extent = job.extent
    told = {
        "job": job.origin.job_code,
        "generation": job.origin.generation,
        "letters": dict(extent.letters),
        "items": extent.items,
        "parked": extent.parked,
        "edits": extent.edits,
        "copies": extent.copies,
        "waiting": extent.waiting,
        "not_looked_into": job.unknown,
    }
    if done is None:
        return told
    erased = done.erased
    counts = {
        "letters": dict(erased.letters),
        "items": erased.items,
        "parked": erased.parked,
        "edits": erased.edits,
        "copies": erased.copies,
    }
    return {**told, "erased": counts, "loose": done.loose, "busy": [str(letter) for letter in erased.busy]}
