"""Stands in for a record that the client could not hand over: only its coordinates are known."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_kernel.event import Headers


@dataclass(frozen=True, slots=True)
class UnreadRecord:
    """A `Record` without content. `timestamp` is -1, as Kafka says for unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
