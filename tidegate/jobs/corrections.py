"""What a dead letter's record should have said: the plan of an edit, and keeping it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from dlq.corrections import LARGEST_VALUE, keep_edit, refuse_unless_editable
from dlq.stored import StoredRecord, stored_record
from tidegate.app import App
from tidegate.jobs.declaration import Job
from tidegate.jobs.decoding import decoder_of
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import NO_SCOPE, Scope, TopicPartition
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.jobs")


class Digest(NamedTuple):
    """What may be told of a value without telling it."""

    bytes: int
    sha256: str


class Reading(NamedTuple):
    """What the job's own decoder makes of a value today. `scope` is None where it does not say whose event it is."""

    told: str
    is_event: bool = False
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """An edit that has not been kept yet. `before` is what the letter holds, `edited`: what an earlier edit said."""

    letter: UUID
    job: str
    record: str
    state: str
    scope: Scope
    before: Digest | None
    edited: Digest | None
    after: Digest
    reading: Reading
    value: bytes = field(repr=False)


def digest_of(value: bytes | None) -> Digest | None:
    return None if value is None else Digest(len(value), sha256(value).hexdigest())


async def plan_edit(database: Connection | Pool, app: App, letter: UUID, value: bytes) -> EditPlan:
    """Returns what `value` would make of the letter's record; nothing is changed.

    Raises Misconfigured for a letter that is not the service's or has been decided about, for a job that is not
    declared any more and for a value that is too large; AlreadyRunning while the letter is replayed; Transient.
    """
    if len(value) > LARGEST_VALUE:
        raise Misconfigured(f"the value is larger than {LARGEST_VALUE} bytes, the most that an edit may have")
    with translated_errors("read a dead letter"):
        row = await database.fetchrow(_QUERIES["letter_to_edit"], app.service, letter)
    refuse_unless_editable(letter, None if row is None else row["state"])
    assert row is not None
    record = stored_record(row)
    return EditPlan(
        letter=letter,
        job=row["code"],
        record=f"{TopicPartition(record.topic, record.partition)}:{record.offset}",
        state=row["state"],
        scope=Scope(row["tenant"], row["brand"]),
        before=digest_of(record.value),
        edited=digest_of(row["corrected_value"]),
        after=Digest(len(value), sha256(value).hexdigest()),
        reading=read_as(app.job(row["code"]), replace(record, value=value)),
        value=value,
    )


async def edit_letter(database: Connection | Pool, actor: Actor, plan: EditPlan, *, reason: str) -> None:
    """Every later read of the record by its job, a replay too, goes by the plan's value. The letter stays as it is.

    Within a scope: a token that is limited to tenants edits letters of theirs to events of theirs. Raises Denied,
    Misconfigured and AlreadyRunning as `plan_edit`, Transient.
    """
    async with permitted(database, actor, _deed(plan, reason)) as connection:
        await keep_edit(connection, plan.letter, plan.value, reason=reason, made_by=actor.name)


def read_as(job: Job, record: StoredRecord) -> Reading:
    """Returns what the job's decoder makes of the record; nothing of its payload but type and id is told."""
    decoder = decoder_of(job)
    if not decoder.reads(record.topic):
        return Reading(f"is not read: topic {record.topic!r} is none of the job's any more")
    decoded = decoder.decode([record])
    if decoded.events:
        event = decoded.events[0].event
        return Reading(f"decodes to {event.type}, id {event.id or 'none'}", is_event=True, scope=event.scope)
    if decoded.failures:
        failure = decoded.failures[0]
        envelope = failure.envelope
        scope = None if envelope is None else Scope(envelope.tenant, envelope.brand)
        return Reading(f"does not decode, {failure.error.reason}: {failure.error}", scope=scope)
    return Reading(f"is skipped: no event of the job is of type {next(iter(decoded.unlisted_types), 'unknown')}")


def _deed(plan: EditPlan, reason: str) -> Deed:
    """A letter without a tenant may be anybody's, and so may be what does not say whose it is: that concerns all."""
    told = {
        "job": plan.job,
        "record": plan.record,
        "before": plan.before and plan.before._asdict(),
        "edited_before": plan.edited and plan.edited._asdict(),
        "after": plan.after._asdict(),
    }
    is_same = plan.reading.scope == plan.scope
    scope = plan.scope if is_same else NO_SCOPE
    return Deed(
        Action.DLQ_EDIT,
        f"letter {plan.letter}",
        reason,
        told,
        tenant=scope.tenant or None,
        brand=scope.brand or None,
    )
