"""What a sink has to offer for stable batches: to take a named range of records once, however often it is offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from projections.sink import Applied, Sink


@runtime_checkable
class StableSink(Sink, Protocol):
    """A sink whose writes must not be repeated, because something counts what is written."""

    async def apply_range(self, encoded: Sequence[Any], name: str) -> Applied:
        """The writes are durable, and counted once: a repeat under the same name changes nothing, whatever it holds.

        Refuses nothing for good. Raises Transient if the store could not take all of them; repeat the whole call then.
        """
