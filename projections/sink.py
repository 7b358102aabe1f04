"""The port to a store that readers query. One contract suite runs on every implementation (`tests/contract`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from projections.writes import Write
from tidegate_kernel.errors import Misconfigured, Reason
from tidegate_kernel.settings import Settings


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """A write that the store itself will never take; the others of its batch are in."""

    index: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of a batch: which writes were older than what the store holds, and which it refused for good."""

    stale_at: frozenset[int] = frozenset()
    refused: Sequence[Refusal] = ()

    @property
    def stale(self) -> int:
        """How many writes were older."""
        return len(self.stale_at)


class Sink(Protocol):
    """An open sink. `encode` is pure; `apply` may wait; both are used by several lanes at once."""

    async def prepare(self) -> None:
        """Creates index and alias, or table and reader view, where missing. Idempotent, safe from several processes.

        Raises Misconfigured where what exists does not fit the declaration.
        """

    async def check(self) -> None:
        """Raises Misconfigured unless `prepare` has been done and the store fits the declaration."""

    def encode(self, write: Write) -> Any:
        """Returns `write` as the store wants it on the wire, opaque to the caller.

        Raises InvalidDocument (a Poison) that names the field or column and, with reason TOO_LARGE, the size.
        """

    async def apply(self, encoded: Sequence[Any]) -> Applied:
        """All writes but the refused ones are durable and will be visible. Applying twice changes nothing.

        Raises Transient if the store could not take all the others; repeat the whole call then.
        """

    async def purge(self, before: datetime, most: int) -> int:
        """Removes up to `most` tombstones written before then, none that is a newer version's by now; returns how many.

        Fewer than `most` means that there are no more, 0 also where the store keeps them. Raises Transient,
        Misconfigured.
        """

    async def reset(self) -> None:
        """Index or table is there as declared, and empty, whatever was there before: its documents are gone.

        Killed in between, it can be called again. Raises Transient, Misconfigured.
        """

    async def documents(self) -> int:
        """About how many documents are there; 0 where there is no index or table. Raises Transient, Misconfigured."""

    async def refresh(self) -> None:
        """Whatever was applied before this call is visible to readers when it returns. Idempotent.

        Raises Transient unless all of the store took part; Misconfigured where it may not be asked for.
        """

    async def probe(self) -> bool:
        """Whether a fresh request reaches the store: tells an outage from a bad batch."""


@runtime_checkable
class PacedSink(Protocol):
    """A sink that sends fewer requests at once while its store is overloaded."""

    @property
    def request_limit(self) -> int:
        """How many may be under way at the moment."""


@runtime_checkable
class EncodesAll(Protocol):
    """A sink that encodes many writes at once for less than one after the other."""

    def encode_all(self, writes: Sequence[Write]) -> Sequence[Any]:
        """What `encode` returns of each, in their order. Raises InvalidDocument where it refuses one of them."""


class SinkDeclaration(Protocol):
    """What the user writes in `ProjectionJob(sink=…)`; does no I/O until opened."""

    @property
    def name(self) -> str:
        """What readers query: the alias or view."""

    @property
    def store(self) -> str:
        """What kind of store it is, as one word: names it in metrics and messages."""

    @property
    def batch_size(self) -> int:
        """Records a batch should hold for this store to be efficient."""

    def where(self, settings: Settings) -> str:
        """The store, its address and the setting that says it, for messages."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Sink]:
        """Yields the sink. Raises Misconfigured if the settings cannot be used (no I/O before the first call)."""


class _NoSink:
    """Stands where a declaration has to be and is none; App refuses it before anything asks it."""

    name = store = ""
    batch_size = 1

    def where(self, settings: Settings) -> str:  # noqa: ARG002  # part of the interface
        return "no sink"

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Sink]:  # noqa: ARG002  # part of the interface
        raise Misconfigured("a projection needs a sink")


NO_SINK: SinkDeclaration = _NoSink()
