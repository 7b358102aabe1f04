"""Records as somebody has corrected them: the discarded is passed by, the edited is read as it should have been.

Everything behind the decoder sees the corrected record. What becomes a dead letter is the original again.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumers.batch import Batch
from consumers.decoding import Decoded, Decoder
from dlq.corrections import CorrectionKind
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Headers, Record


@dataclass(frozen=True, slots=True)
class CorrectedRecord:
    """A `Record` with an edited value; everything else is that of `original`."""

    original: Record
    value: bytes | None

    @property
    def topic(self) -> str:
        return self.original.topic

    @property
    def partition(self) -> int:
        return self.original.partition

    @property
    def offset(self) -> int:
        return self.original.offset

    @property
    def timestamp(self) -> int:
        return self.original.timestamp

    @property
    def key(self) -> bytes | None:
        return self.original.key

    @property
    def headers(self) -> Headers:
        return self.original.headers


def original_of(record: Record) -> Record:
    """The record as it stands in the topic."""
    return record.original if isinstance(record, CorrectedRecord) else record


def decode_corrected(decoder: Decoder, batch: Batch) -> Decoded:
    """As `Decoder.decode`, by the batch's corrections: discarded records are counted, edited ones decoded as edited."""
    kept: list[Record] = []
    for record in batch.records:
        correction = batch.corrections.get(record.offset)
        if correction is None:
            kept.append(record)
        elif correction.kind is CorrectionKind.EDIT:
            kept.append(CorrectedRecord(record, correction.value))
    decoded = decoder.decode(kept)
    decoded.discarded = len(batch.records) - len(kept)
    return decoded


def is_known_otherwise(batch: Batch) -> bool:
    """Whether somebody has said what becomes of the batch's only record, which the client cannot hand over.

    What ended its processes was read, edited or not: an edit of it is a new attempt, and does not stop the count.
    """
    correction = batch.corrections.get(batch.records[0].offset)
    is_unread = batch.unreadable is not None and batch.unreadable.reason is Reason.CLIENT_PARSE
    return correction is not None and (is_unread or correction.kind is CorrectionKind.DISCARD)
