"""Records as somebody has corrected them: what was discarded is passed by, what was edited is read as edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from consumers.batch import Batch
from consumers.correcting import CorrectedRecord, decode_corrected, is_known_otherwise, original_of
from consumers.decoding import Decoder
from consumers.envelopes import CloudEvents
from consumers.formats import Json
from consumers.letters import failure_of_arrival, failure_of_record, failure_of_undecoded
from consumers.routes import on
from consumers.topics import Topic
from consumers.unread import UnreadRecord
from dlq.corrections import Correction, CorrectionKind
from tests.unit.records import StoredRecord, cloud_event
from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import LIVE, Event, Fence, JobId, Record

BAD, GOOD = b"{", b'{"order_id":"o1"}'
DISCARD = Correction(CorrectionKind.DISCARD)


class OrderPlaced(msgspec.Struct):
    order_id: str


def handled(event: Event[Any]) -> str:
    return event.id


DECODER = Decoder(
    {"shop.orders": Topic("shop.orders", Json(), CloudEvents())}, [on("order.placed", OrderPlaced, handled)], "skip"
)


def edit(value: bytes) -> Correction:
    return Correction(CorrectionKind.EDIT, value)


def batch(records: Sequence[Record], corrections: dict[int, Correction], *, unreadable: Reason | None = None) -> Batch:
    fence = Fence(JobId(1), LIVE, "shop.orders", 0, 1, records[0].offset)
    error = None if unreadable is None else Poison("no", reason=unreadable)
    return Batch(fence, UUID(int=7), records, records[-1].offset + 1, unreadable=error, corrections=corrections)


def test_edited_record_decodes_from_its_new_value_under_its_old_key_and_headers() -> None:
    """What was wrong is the value; id, type and order of the event hang on the rest."""
    original = cloud_event(BAD, offset=1, id=b"e1")

    decoded = decode_corrected(DECODER, batch([cloud_event(GOOD), original], {1: edit(GOOD)}))

    assert [(arrival.event.id, arrival.event.data) for arrival in decoded.events] == [
        ("event-0", OrderPlaced("o1")),
        ("e1", OrderPlaced("o1")),
    ]
    record = decoded.events[1].record
    assert (record.key, record.headers, record.offset) == (original.key, original.headers, 1)
    assert (record.topic, record.partition, record.timestamp) == ("shop.orders", 0, original.timestamp)


def test_discarded_record_is_counted_and_nothing_else() -> None:
    """Neither an event nor a failure, nor a tombstone that deletes something."""
    records = [cloud_event(GOOD), cloud_event(BAD, offset=1), cloud_event(None, offset=2)]

    decoded = decode_corrected(DECODER, batch(records, {0: DISCARD, 1: DISCARD, 2: DISCARD, 9: DISCARD}))

    assert (decoded.events, decoded.failures, decoded.tombstones) == ([], [], [])
    assert (decoded.discarded, decoded.passed_by) == (3, 3)


def test_letters_keep_the_original_of_an_edited_record() -> None:
    """The letter is the evidence of what was produced; what it was edited to is kept beside it."""
    original = cloud_event(BAD)
    edited = batch([original], {0: edit(b'{"order_id": 1}')})
    arrived = batch([original], {0: edit(GOOD)})
    [undecoded] = decode_corrected(DECODER, edited).failures
    [arrival] = decode_corrected(DECODER, arrived).events

    kept = [
        failure_of_undecoded(edited, undecoded),
        failure_of_arrival(arrived, arrival, Poison("no"), reason=Reason.REJECTED, claim=None, handler="h"),
        failure_of_record(arrived, CorrectedRecord(original, GOOD), Poison("no"), reason=Reason.NO_VALUE),
    ]

    assert [failure.record for failure in kept] == [original] * 3


def test_letter_of_an_edited_record_that_nobody_could_read_says_that_it_has_no_payload() -> None:
    """What the client has never handed over is not made up from the edit."""
    unread = UnreadRecord("shop.orders", 0, 5)

    failure = failure_of_record(batch([unread], {}), CorrectedRecord(unread, BAD), Poison("no"), reason=Reason.REJECTED)

    assert not failure.has_payload
    assert original_of(failure.record) is unread


@pytest.mark.parametrize(
    "correction, unreadable, is_known",
    [
        (None, Reason.CLIENT_PARSE, False),
        (DISCARD, Reason.CLIENT_PARSE, True),
        (edit(GOOD), Reason.CLIENT_PARSE, True),
        (DISCARD, Reason.WORKER_CRASHED, True),
        # Else it would end one process after the other, edited as it is.
        (edit(GOOD), Reason.WORKER_CRASHED, False),
    ],
)
def test_what_cannot_be_read_is_known_from_its_correction(
    correction: Correction | None, unreadable: Reason, is_known: bool
) -> None:
    """A record that somebody has decided about needs no client to be passed by, or to be read as edited."""
    record: StoredRecord = cloud_event(GOOD, offset=3)
    corrections = {} if correction is None else {3: correction}

    assert is_known_otherwise(batch([record], corrections, unreadable=unreadable)) is is_known


@pytest.mark.parametrize("kind, value", [(CorrectionKind.EDIT, None), (CorrectionKind.DISCARD, b"")])
def test_a_correction_is_whole(kind: CorrectionKind, value: bytes | None) -> None:
    """An edit without a value would turn the record into a tombstone."""
    with pytest.raises(ValueError, match="an edit has a value"):
        Correction(kind, value)
