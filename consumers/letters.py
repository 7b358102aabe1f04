"""From what went wrong on the road to the dead letter that keeps it: the original, also of an edited record."""

from __future__ import annotations

from consumers.batch import Batch
from consumers.correcting import original_of
from consumers.decoding import Arrival, Undecoded
from consumers.unread import UnreadRecord
from dlq.letters import Failure
from inbox.identity import ClaimKey
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Record, Scope


def failure_of_arrival(
    batch: Batch, arrival: Arrival, error: BaseException, *, reason: Reason, claim: ClaimKey | None, handler: str
) -> Failure:
    """The failure of a decoded event. `claim` is what the letter keeps, so that no repeat passes it by."""
    event = arrival.event
    return Failure(
        record=original_of(arrival.record),
        topic_id=batch.topic_id,
        reason=reason,
        error=error,
        attempts=max(1, batch.attempts.made_at(arrival.record.offset)),
        handler=handler,
        event_id=event.id or None,
        event_type=event.type,
        scope=event.scope,
        correlation_id=event.correlation_id,
        traceparent=event.traceparent,
        claim=None if claim is None else (claim.bucket, claim.id),
    )


def failure_of_undecoded(batch: Batch, undecoded: Undecoded) -> Failure:
    """The failure of a record that never became an event; what its envelope told is kept."""
    envelope = undecoded.envelope
    if envelope is None:
        return failure_of_record(batch, undecoded.record, undecoded.error, reason=undecoded.error.reason)
    return Failure(
        record=original_of(undecoded.record),
        topic_id=batch.topic_id,
        reason=undecoded.error.reason,
        error=undecoded.error,
        attempts=1,
        handler="decode",
        event_id=envelope.id,
        event_type=envelope.type or None,
        scope=Scope(envelope.tenant, envelope.brand),
        correlation_id=envelope.correlation_id,
        traceparent=envelope.traceparent,
        claim=None,
    )


def failure_of_record(batch: Batch, record: Record, error: BaseException, *, reason: Reason) -> Failure:
    """The failure of a record of which nothing was decoded; perhaps only its place is known."""
    record = original_of(record)
    return Failure(
        record=record,
        topic_id=batch.topic_id,
        reason=reason,
        error=error,
        attempts=1,
        handler="decode",
        event_id=None,
        event_type=None,
        scope=Scope(),
        correlation_id=None,
        traceparent=None,
        claim=None,
        has_payload=not isinstance(record, UnreadRecord),
    )
