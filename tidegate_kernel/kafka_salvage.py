"""Reads on where the client's parser refuses a record.

The client gives up on the whole rest of a batch because of one header name that is no UTF-8, and again after every
seek, since a broker always sends whole batches. So the partition is fetched once more, over the client's own
connection, and parsed with names read whatever they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.structs import TopicPartition as ClientPartition

from tidegate_kernel.event import Record
from tidegate_kernel.source import SourceFailure

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_BEFORE_LENGTH_ENDS = 12
_WAIT_MS = 500


def has_readable_names(record: Record) -> bool:
    """Whether the names of all headers are UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for name, _ in record.headers for letter in name)


async def refetch(client: Any, partition: ClientPartition, offset: int, *, max_bytes: int) -> Iterator[Record]:
    """Returns the committed records from `offset` on that one answer of the broker holds.

    A name that is no UTF-8 has lone surrogates for the bytes that cannot be text. Raises SourceFailure; iterating
    raises the client's CorruptRecordException.
    """
    wanted = [(partition.topic, [(partition.partition, offset, max_bytes)])]
    try:
        leader = client.cluster.leader_for_partition(partition)
        answer = await client.send(leader, FetchRequest(_WAIT_MS, 1, max_bytes, READ_COMMITTED, wanted))
    except (KafkaError, OSError) as error:
        raise SourceFailure(f"fetch: {type(error).__name__}: {error}") from error
    ((_, ((_, code, _, *rest),)),) = answer.topics
    if code:
        raise SourceFailure(f"fetch: {for_code(code).__name__}")
    aborted = rest[2] if answer.API_VERSION >= 11 else rest[-2]
    records: Iterator[Record] = PartitionRecords(
        partition, _Batches(rest[-1]), aborted, offset, None, None, True, READ_COMMITTED
    )
    return records


class _Batches:
    """The batches of an answer; one that is cut off at its end is left out. Stands in for the client's own."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def has_next(self) -> bool:
        return self._end() <= len(self._raw)

    def next_batch(self) -> Any:
        start, self._at = self._at, self._end()
        batch = _DefaultRecordBatchPy(self._raw[start : self._at])
        if not batch.validate_crc():
            return batch  # for the caller, who checks it too
        batch._maybe_uncompress()
        batch._buffer = _Lenient(batch._buffer)
        batch.validate_crc = lambda: True  # it looks at the bytes as they came
        return batch

    def _end(self) -> int:
        if self._at + _BEFORE_LENGTH_ENDS > len(self._raw):
            return len(self._raw) + 1
        return self._at + _BEFORE_LENGTH_ENDS + int(_LENGTH.unpack_from(self._raw, self._at + _LENGTH_AT)[0])


class _Lenient(bytearray):
    """Bytes, and parts of them, that can always be read as text: the client asks them for header names only."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return _Lenient(part) if isinstance(part, bytearray) else part

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)
