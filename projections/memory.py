"""A sink in this process, for tests of applications: the rules of the real ones, checked by the same contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from projections.documents import check_write, json_document
from projections.sink import Applied, Refusal
from projections.writes import Upsert, Write
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Reason, Transient
from tidegate_kernel.settings import Settings

_MAX_DOCUMENT_BYTES = 10 * 1024 * 1024


class _Stored(NamedTuple):
    version: int
    document: bytes | None
    """None for a tombstone."""
    deleted_at: datetime | None = None


class _Encoded(NamedTuple):
    id: str
    stored: _Stored


class MemorySink:
    """Declaration and open sink in one; the rows outlive `open`, as those of a real store do.

    Writes to ids in `refuse` are refused for good, as a store refuses a document that does not fit. While `is_down`,
    the store cannot be reached: `apply` raises Transient, `probe` answers False.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        batch_size: int = 1000,
        max_document_bytes: int = _MAX_DOCUMENT_BYTES,
        refuse: Container[str] = frozenset(),
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.batch_size = batch_size
        self.is_down = False
        self._max_document_bytes = max_document_bytes
        self._refuse = refuse
        self._clock = clock or SystemClock()
        self._is_prepared = False
        self._stored: dict[str, _Stored] = {}

    @property
    def store(self) -> str:
        return "memory"

    def where(self, settings: Settings) -> str:  # noqa: ARG002  # part of the interface
        return f"sink {self.name!r} of this process"

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[MemorySink]:  # noqa: ARG002  # part of the interface
        yield self

    async def prepare(self) -> None:
        self._raise_if_down()
        self._is_prepared = True

    async def check(self) -> None:
        self._raise_if_down()
        if not self._is_prepared:
            raise Misconfigured(f"sink {self.name!r} is not prepared; run 'tidegate migrate'")

    def encode(self, write: Write) -> _Encoded:
        check_write(write)
        if isinstance(write, Upsert):
            return _Encoded(write.id, _Stored(write.version, json_document(write.document, self._max_document_bytes)))
        return _Encoded(write.id, _Stored(write.version, None, self._clock.now()))

    async def apply(self, encoded: Sequence[_Encoded]) -> Applied:
        self._raise_if_down()
        stale, refused = set(), []
        for index, (document_id, stored) in enumerate(encoded):
            present = self._stored.get(document_id)
            if document_id in self._refuse:
                refused.append(Refusal(index, Reason.INVALID_DOCUMENT, f"sink {self.name!r} refuses this id"))
            elif present is not None and present.version > stored.version:
                stale.add(index)
            else:
                self._stored[document_id] = stored
        return Applied(stale_at=frozenset(stale), refused=tuple(refused))

    async def purge(self, before: datetime, most: int) -> int:
        self._raise_if_down()
        gone = [each for each, stored in self._stored.items() if stored.deleted_at and stored.deleted_at < before]
        for document_id in gone[:most]:
            del self._stored[document_id]
        return len(gone[:most])

    async def reset(self) -> None:
        self._raise_if_down()
        self._stored.clear()
        self._is_prepared = True

    async def documents(self) -> int:
        self._raise_if_down()
        return len(self.rows())

    async def refresh(self) -> None:
        """Readers see each write at once."""
        self._raise_if_down()

    async def probe(self) -> bool:
        return not self.is_down

    def get(self, document_id: str) -> dict[str, Any] | None:
        """The document as a reader sees it (JSON's types), or None where there is none or it was deleted."""
        stored = self._stored.get(document_id)
        if stored is None or stored.document is None:
            return None
        document: dict[str, Any] = msgspec.json.decode(stored.document)
        return document

    def rows(self) -> dict[str, dict[str, Any]]:
        """All documents that a reader sees, by id."""
        return {each: row for each in self._stored if (row := self.get(each)) is not None}

    def _raise_if_down(self) -> None:
        if self.is_down:
            raise Transient(f"sink {self.name!r} is down")
