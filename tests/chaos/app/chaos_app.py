"""The service that chaos strikes: a ledger that publishes, an index and a table, all of the same two topics."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from tidegate import (
    App,
    ClickHouse,
    CloudEvents,
    ConsumerJob,
    Context,
    Delete,
    Elasticsearch,
    Event,
    Json,
    ProjectionJob,
    Rejected,
    RetryPolicy,
    ScopeFields,
    Tombstone,
    Topic,
    Upsert,
    handle,
    handle_batch,
    on,
)

# Minutes of waiting would hide everything else in a run of minutes.
_IMPATIENT = RetryPolicy(name="impatient", longest_delay=timedelta(seconds=1))

# One statement for many: a row for each effect, in the order of the events, and sums that would show a second
# application even if the rows did not.
_RECORD = """
WITH change AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
    WITH ORDINALITY AS c (event_id, key, version, cents, place)
),
added AS (
    INSERT INTO account AS a (key, events, cents)
    SELECT key, count(*), sum(cents)
    FROM change
    GROUP BY key
    ORDER BY key
    ON CONFLICT (key) DO UPDATE SET events = a.events + excluded.events, cents = a.cents + excluded.cents
)
INSERT INTO effect (event_id, key, version, cents)
SELECT event_id, key, version, cents
FROM change
ORDER BY place
"""


class Changed(msgspec.Struct, frozen=True):
    """Something of value changed: by so many cents, to this version."""

    key: str
    version: int
    cents: int


class Recorded(msgspec.Struct, frozen=True):
    """The ledger took a change."""

    cause: str
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Most of them, many in one call."""

    event_id: str
    change: Changed


@dataclass(frozen=True, slots=True)
class RecordTwin:
    """Those that arrive in two topics, one in each call."""

    event_id: str
    change: Changed


def to_command(event: Event[Changed]) -> RecordChange | RecordTwin:
    is_twin = event.data.key.startswith("twin-")
    return (RecordTwin if is_twin else RecordChange)(event.id, event.data)


async def record_changes(commands: Sequence[RecordChange | RecordTwin], ctx: Context[None]) -> None:
    if any(each.change.cents < 0 for each in commands):
        raise Rejected("a change has no negative value")
    await _record(commands, ctx)


async def record_mended_changes(commands: Sequence[RecordChange | RecordTwin], ctx: Context[None]) -> None:
    """As after a deployment that can handle half of what was refused."""
    if any(each.change.cents < 0 and each.change.cents % 2 for each in commands):
        raise Rejected("a change has no odd negative value")
    await _record(commands, ctx)


async def _record(commands: Sequence[RecordChange | RecordTwin], ctx: Context[None]) -> None:
    ids, changes = [each.event_id for each in commands], [each.change for each in commands]
    keys, versions = [each.key for each in changes], [each.version for each in changes]
    await ctx.db.execute(_RECORD, ids, keys, versions, [each.cents for each in changes])
    for event_id, change in zip(ids, changes, strict=True):
        ctx.publish("chaos.recorded", Recorded(event_id, change.key, change.version), key=change.key)


async def record_twin(command: RecordTwin, ctx: Context[None]) -> None:
    await record_changes([command], ctx)


def document(event: Event[Changed]) -> Upsert:
    changed = event.data
    body = {"key": changed.key, "version": changed.version, "cents": changed.cents, "event_id": event.id}
    return Upsert(id=changed.key, version=changed.version, document=body)


def removed(tombstone: Tombstone) -> Delete:
    assert tombstone.key is not None
    return Delete(id=tombstone.key.decode(), version=int(tombstone.headers["version"] or b""))


def _topic(name: str, partitions: int) -> Topic:
    return Topic(
        name,
        format=Json(),
        envelope=CloudEvents(),
        scope=ScopeFields(tenant="tenantid", brand="brandid"),
        tombstone=removed,
        partitions=partitions,
    )


_TOPICS = [_topic("chaos.changes", 4), _topic("chaos.mirror", 2)]

_ledger = ConsumerJob(
    code="ledger",
    topics=_TOPICS,
    unlisted="skip",
    runbook="none",
    events=[on("chaos.changed", Changed, to_command)],
    retry=_IMPATIENT,
)
_search = ProjectionJob(
    code="search",
    topics=_TOPICS,
    unlisted="skip",
    runbook="none",
    events=[on("chaos.changed", Changed, document)],
    sink=Elasticsearch(
        index="chaos",
        mappings={
            "properties": {
                "key": {"type": "keyword"},
                "version": {"type": "long"},
                "cents": {"type": "long"},
                "event_id": {"type": "keyword"},
            }
        },
    ),
    freshness_sla=timedelta(seconds=5),
    retry=_IMPATIENT,
)
_report = ProjectionJob(
    code="report",
    topics=_TOPICS,
    unlisted="skip",
    runbook="none",
    events=[on("chaos.changed", Changed, document)],
    sink=ClickHouse(
        table="chaos",
        columns={"key": "String", "version": "Int64", "cents": "Int64", "event_id": "String"},
        order_by=["key"],
    ),
    freshness_sla=timedelta(seconds=5),
    retry=_IMPATIENT,
)


def _app(
    *jobs: ConsumerJob | ProjectionJob,
    changes: Callable[[Sequence[RecordChange], Context[None]], Awaitable[None]] = record_changes,
) -> App:
    return App(
        service="chaos",
        owner="chaos-team",
        jobs=jobs,
        handlers=[handle_batch(RecordChange, changes), handle(RecordTwin, record_twin)],
        migrations=Path(__file__).with_name("migrations"),
    )


app = _app(_ledger, _search, _report)
mended_app = _app(_ledger, _search, _report, changes=record_mended_changes)
"""What replays run with, while workers are as they were."""
ledger_app = _app(_ledger)
"""For a run that is about Kafka alone."""
