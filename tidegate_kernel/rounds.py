"""Rounds of upkeep, as whoever runs them follows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

Tell: TypeAlias = Callable[[int], Awaitable[None]]
"""Called between the chunks of a round with how many things the last one removed; what it raises ends the round."""


async def tell_nobody(_: int) -> None:
    """Nobody follows the round, and nothing ends it early."""
