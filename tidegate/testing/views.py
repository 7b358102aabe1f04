"""What a test looks at afterwards: dead letters and published records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Headers, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that a job could not handle. `error_message` is empty where the error's text may quote the record."""

    job: str
    reason: Reason
    error_class: str
    error_message: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    event_id: str | None
    event_type: str | None
    tenant: str
    brand: str
    handler: str
    attempts: int
    occurrences: int
    state: str


def dead_letter(row: asyncpg.Record) -> DeadLetter:
    """The letter of a row of `dead_letters`."""
    columns = dict(row)
    names, contents = columns.pop("header_names"), columns.pop("header_values")
    headers = [(name.decode("utf-8", "replace"), content) for name, content in zip(names, contents, strict=True)]
    return DeadLetter(**{**columns, "reason": Reason(columns["reason"])}, headers=headers)


@dataclass(frozen=True, slots=True)
class Published:
    """A record that reached a topic through the outbox. Header values are text; of repeated names the last."""

    key: str | None
    value: bytes | None
    headers: Mapping[str, str | None]

    @property
    def type(self) -> str | None:
        """The CloudEvents type."""
        return self.headers.get("ce_type")

    @property
    def id(self) -> str | None:
        """The CloudEvents id: the same for every repeat."""
        return self.headers.get("ce_id")

    @property
    def data(self) -> Any:
        """The value, read as JSON; None where there is none."""
        return None if self.value is None else msgspec.json.decode(self.value)


def published(record: Record) -> Published:
    """How a test sees `record`."""
    return Published(_text(record.key), record.value, {name: _text(content) for name, content in record.headers})


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "replace")
