"""Records as Postgres keeps them: of dead letters and parked events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate_kernel.event import Headers


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it came out of Kafka, from its row. `timestamp` is -1 where no calendar held the one it had."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def stored_record(row: Any) -> StoredRecord:
    """Returns the record of a row: topic, partition, offset, recorded_at, key, value, header_names, header_values."""
    at: datetime | None = row["recorded_at"]
    names = (name.decode("utf-8", "surrogateescape") for name in row["header_names"])
    return StoredRecord(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        timestamp=-1 if at is None else round(at.timestamp() * 1000),
        key=row["key"],
        value=row["value"],
        headers=tuple(zip(names, row["header_values"], strict=True)),
    )
