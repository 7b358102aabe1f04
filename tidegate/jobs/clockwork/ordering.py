"""Whether pages of a query are ordered by their items' keys: behind the last one the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tidegate.jobs.clockwork.items import Item
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

_DATABASES = "by the database's own collation"


class PageOrder:
    """The order in which the pages of one run have come so far. What an earlier page has ruled out stays ruled out."""

    def __init__(self, hands: RunHands) -> None:
        self._hands = hands
        self._possible = {*_ORDERS, _DATABASES}

    async def require(self, batch: Sequence[Item], *, after: str | None) -> None:
        """Returns if each item is behind the one before it, and the first behind `after`.

        Raises Misconfigured where a page goes back: whatever it has left out would never be asked for again. Raises
        Transient: of keys that are not in order by character, Postgres is asked.
        """
        if self._hands.job.key_order == "of_query":
            return
        keys = [*([] if after is None else [after]), *(item.key for item in batch)]
        self._possible -= {name for name, is_ascending in _ORDERS.items() if not is_ascending(keys)}
        if "by character" in self._possible:
            return  # nearly always: nobody is asked
        if _DATABASES in self._possible and not await self._is_the_databases(keys):
            self._possible.discard(_DATABASES)
        if not self._possible:
            raise self._goes_back()

    async def _is_the_databases(self, keys: Sequence[str]) -> bool:
        async with self._hands.transaction() as connection:
            return bool(await connection.fetchval(_QUERIES["are_ascending"], keys))

    def _goes_back(self) -> Misconfigured:
        return Misconfigured(
            f"job {self._hands.job.code!r}: its query answers with a page that goes back: the keys of its items do not "
            "ascend from behind page.after on, so that others would be left out without a word. Order it by what the "
            "job's key() makes (ORDER BY … LIMIT page.limit), or, if its order is stable and another one, declare "
            "key_order='of_query'"
        )


def is_by_character(keys: Sequence[str]) -> bool:
    """Whether they ascend as collation "C" has it."""
    return all(one < other for one, other in pairwise(keys))


def is_by_number(keys: Sequence[str]) -> bool:
    """Whether all of them are digits, and ascend as numbers."""
    if not all(key.isascii() and key.isdigit() for key in keys):
        return False
    return all(int(one) < int(other) for one, other in pairwise(keys))


_ORDERS: Mapping[str, Callable[[Sequence[str]], bool]] = {"by character": is_by_character, "by number": is_by_number}
