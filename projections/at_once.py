"""A batch encoded at once: upserts together, and the few deletes between them each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from projections.writes import Upsert, Write

Encoded = TypeVar("Encoded")


def encode_at_once(
    writes: Sequence[Write],
    upserts: Callable[[Sequence[Upsert]], Sequence[Encoded]],
    encode: Callable[[Write], Encoded],
) -> Sequence[Encoded]:
    """What `encode` returns of each write, in their order, with all upserts by one call of `upserts`."""
    plain = [write for write in writes if write.__class__ is Upsert]
    encoded = upserts(plain)
    if len(plain) == len(writes):
        return encoded
    made = iter(encoded)
    return [next(made) if write.__class__ is Upsert else encode(write) for write in writes]
