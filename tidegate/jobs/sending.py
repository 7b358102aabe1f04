"""Events made by hand: what `tidegate send` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from consumers.cloudevents import CloudEvents
from consumers.routes import Route
from consumers.topics import ScopeFields, Topic
from tidegate.jobs.declaration import Job
from tidegate.jobs.publishing import cloud_event
from tidegate_kernel.errors import Misconfigured, Poison, Transient
from tidegate_kernel.kafka import open_reader, open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing
from tidegate_kernel.uuid7 import uuid7

SOURCE = "tidegate-send"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event as a person describes it. Its id is a new one unless given."""

    type: str
    data: bytes
    time: datetime
    id: str | None = None
    key: str | None = None
    tenant: str | None = None
    brand: str | None = None
    version: int | None = None


def drafted_event(topic: Topic | str, draft: EventDraft) -> tuple[str, Outgoing]:
    """Returns the event's id and its record: a binary CloudEvent.

    A declared topic says in which attributes tenant and brand stand. Raises Misconfigured if it reads no CloudEvents or
    has no place for the scope.
    """
    name, scope = (topic, ScopeFields("tenantid", "brandid")) if isinstance(topic, str) else (topic.name, topic.scope)
    if isinstance(topic, Topic) and not isinstance(topic.envelope, CloudEvents):
        raise Misconfigured(
            f"topic {name!r} carries {type(topic.envelope).__name__}, but 'tidegate send' writes CloudEvents"
        )
    identity = draft.id or str(uuid7(draft.time))
    attributes = {"id": identity, "source": SOURCE, "type": draft.type, "time": draft.time.isoformat()}
    attributes |= _optional(name, draft, scope)
    return identity, cloud_event(name, draft.data, attributes=attributes, key=draft.key)


def _optional(topic: str, draft: EventDraft, scope: ScopeFields) -> Mapping[str, str]:
    given = {} if draft.version is None else {"dataversion": str(draft.version)}
    for what, field, value in (("tenant", scope.tenant, draft.tenant), ("brand", scope.brand, draft.brand)):
        if value is not None and field is None:
            raise Misconfigured(f"topic {topic!r} has no {what}: its ScopeFields name no attribute for it")
        if value is not None and field is not None:
            given[field] = value
    return given


def check_data(jobs: Sequence[Job], topic: Topic, draft: EventDraft) -> Sequence[str]:
    """Returns the codes of the jobs that take the event.

    Raises Misconfigured if one of them would refuse its data; the message names the field, as the dead letter would.
    """
    takers = list(_takers(jobs, topic, draft.type))
    for job, route in takers:
        if draft.version is not None and draft.version != route.version:
            continue  # an older one is lifted first, by the job's own functions
        try:
            topic.format.decoder(route.model)(draft.data)
        except Poison as error:
            raise Misconfigured(
                f"job {job.code!r} would refuse this {draft.type!r} ({error.reason}): {error}"
            ) from error
    return [job.code for job, _ in takers]


def _takers(jobs: Sequence[Job], topic: Topic, type_: str) -> Iterator[tuple[Job, Route[object]]]:
    for job in jobs:
        if any(each.name == topic.name for each in job.topics):
            yield from ((job, route) for route in job.events if route.type == type_)


async def send(settings: KafkaSettings, records: Sequence[Outgoing]) -> None:
    """Kafka has all of `records`. Raises Misconfigured for a topic that does not exist, Transient naming the first
    record that was not confirmed."""
    topics = sorted({record.topic for record in records})
    async with open_reader(settings) as reader:
        missing = [topic for topic in topics if not await reader.partitions_of(topic)]
    if missing:
        raise Misconfigured(f"kafka has no topic {missing[0]!r}; run 'tidegate topics create'")
    async with open_writer(settings) as writer:
        for number, failure in enumerate(await writer.write(records), start=1):
            if failure is not None:
                raise Transient(f"record {number} of {len(records)} was not confirmed: {failure}")
