"""The service that chaos strikes: a ledger that publishes, an index and a table, all of the same two topics."""

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
    on,
)

# Minutes of waiting would hide everything else in a run of minutes.
_IMPATIENT = RetryPolicy(name="impatient", longest_delay=timedelta(seconds=1))

# One statement: the row of the effect, and a sum that would show a second application even if the row did not.
_RECORD = """
WITH added AS (
    INSERT INTO account AS a (key, events, cents)
    VALUES ($2, 1, $4)
    ON CONFLICT (key) DO UPDATE SET events = a.events + 1, cents = a.cents + excluded.cents
)
INSERT INTO effect (event_id, key, version, cents)
VALUES ($1, $2, $3, $4)
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
    key: str
    version: int
    cents: int


def to_change(event: Event[Changed]) -> RecordChange:
    return RecordChange(event.data.key, event.data.version, event.data.cents)


async def record_change(change: RecordChange, ctx: Context[None]) -> None:
    if change.cents < 0:
        raise Rejected("a change has no negative value")
    identity = ctx.event.id
    await ctx.db.execute(_RECORD, identity, change.key, change.version, change.cents)
    ctx.publish("chaos.recorded", Recorded(identity, change.key, change.version), key=change.key)


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


changes, mirror = _topic("chaos.changes", 4), _topic("chaos.mirror", 2)

app = App(
    service="chaos",
    owner="chaos-team",
    jobs=[
        ConsumerJob(
            code="ledger",
            topics=[changes, mirror],
            unlisted="skip",
            runbook="none",
            events=[on("chaos.changed", Changed, to_change)],
            retry=_IMPATIENT,
        ),
        ProjectionJob(
            code="search",
            topics=[changes, mirror],
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
        ),
        ProjectionJob(
            code="report",
            topics=[changes, mirror],
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
        ),
    ],
    handlers=[handle(RecordChange, record_change)],
    migrations=Path(__file__).with_name("migrations"),
)
