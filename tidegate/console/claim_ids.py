"""Under which ids a job may have claimed an event: pure, from the declaration and what the operator knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from consumers.envelopes import DebeziumOutbox, PlainJson
from consumers.topics import EnvelopeReader, Topic
from consumers.unread import UnreadRecord
from inbox.identity import ClaimRule
from tidegate.jobs.declaration import Job
from tidegate_kernel.event import Event, Scope

_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EventSought:
    """An event id, and what is known of the event besides; None is not the same as the empty text."""

    id: str
    source: str | None = None
    tenant: str | None = None
    brand: str | None = None


class ClaimIds(NamedTuple):
    """The ids to look for. `lacking` says what has to be known for the others; None where these are all."""

    ids: frozenset[UUID]
    lacking: str | None = None


def claim_ids(job: Job, sought: EventSought) -> ClaimIds:
    """Every id under which `job` would claim the event sought, as far as what is known of it tells."""
    rule = job.claim_rule
    if not rule.is_scoped(sought.id):
        return ClaimIds(frozenset({_id(rule, sought.id, "", Scope())}))
    ids, lacking = set(), set[str]()
    for topic in job.topics:
        source = sought.source if sought.source is not None else _constant_source(topic.envelope)
        missing = set(_missing(topic, sought, source))
        lacking |= missing
        if not missing and source is not None:
            ids.add(_id(rule, sought.id, source, Scope(sought.tenant or "", sought.brand or "")))
    return ClaimIds(frozenset(ids), _sentence(sought.id, lacking) if lacking else None)


def _missing(topic: Topic, sought: EventSought, source: str | None) -> Iterator[str]:
    if source is None:
        yield "--source"
    if topic.scope.tenant is not None and sought.tenant is None:
        yield "--tenant"
    if topic.scope.brand is not None and sought.brand is None:
        yield "--brand"


def _sentence(event_id: str, lacking: set[str]) -> str:
    options = " and ".join(option for option in ("--source", "--tenant", "--brand") if option in lacking)
    return (
        f"{event_id[:100]!r} is no UUID, so it is unique only within its source, tenant and brand; "
        f"its claim is found with {options} (an empty text means none)"
    )


def _constant_source(envelope: EnvelopeReader) -> str | None:
    """The source of every event in it; None where each event tells its own."""
    match envelope:
        case PlainJson(source=source) | DebeziumOutbox(source=source, source_header=None):
            return source
        case _:
            return None


def _id(rule: ClaimRule, event_id: str, source: str, scope: Scope) -> UUID:
    # Only the bucket follows from the time, and all buckets are searched.
    event = Event[Any](event_id, "", None, UnreadRecord("", 0, 0), _ANY_TIME, source=source, scope=scope)
    return rule.key(event).id
