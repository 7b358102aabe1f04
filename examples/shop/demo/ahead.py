"""What a sink shows of records that its projection has not settled: the traces of a batch under way.

A document of an order is in the index, and the first record that ever told of that order lies at or behind the
projection's position: so a batch that holds it was applied, in part at least, and is not settled. Nothing else writes
there, and all records of an order lie in one partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from examples.shop.demo.place import Place, TrialFailed
from examples.shop.demo.produce import First, Sent

# The first records of a batch are in its first request, and enough to see whether that has come through.
_ORDERS_A_PARTITION = 20
# The kill's process is frozen meanwhile, and its session runs.
_PATIENCE = aiohttp.ClientTimeout(total=2)

Present = Callable[[Sequence[str]], Awaitable[frozenset[str]]]
"""Those of the orders that a sink holds, deleted ones too, searchable already or not."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A position as it stands: the job, its place, the first record that is not settled."""

    job: str
    topic: str
    partition: int
    next_offset: int
    epoch: int


class Sinks:
    """Looks into the physical index and the physical table, past the views that readers have."""

    def __init__(self, place: Place, http: aiohttp.ClientSession, sent: Sent) -> None:
        self._http, self._sent = http, sent
        self._documents = f"{place.elasticsearch}/{place.index}-g1/_mget?_source=false&realtime=true"
        self._clickhouse, self._table = place.clickhouse, f"{place.table}_g1"

    async def ahead(self, standing: Standing) -> First | None:
        """The first of the orders that its sink knows and that no settled record tells of; None if there is none."""
        firsts = self._sent.firsts_from(standing.partition, standing.next_offset)[:_ORDERS_A_PARTITION]
        sinks: dict[str, Present] = {"order-search": self._indexed, "revenue-by-day": self._stored}
        if standing.job not in sinks or not firsts:
            return None
        present = await sinks[standing.job]([first.order for first in firsts])
        return next((first for first in firsts if first.order in present), None)

    async def _indexed(self, orders: Sequence[str]) -> frozenset[str]:
        async with self._http.post(self._documents, json={"ids": orders}, timeout=_PATIENCE) as answer:
            _require(answer, "elasticsearch")
            return frozenset(found["_id"] for found in (await answer.json())["docs"] if found.get("found"))

    async def _stored(self, orders: Sequence[str]) -> frozenset[str]:
        quoted = ", ".join(f"'{order}'" for order in orders)  # our own ids: letters, digits, dashes
        query = f"SELECT order_id FROM `{self._table}` WHERE order_id IN ({quoted})"  # noqa: S608  # names of ours
        async with self._http.post(self._clickhouse, data=query, timeout=_PATIENCE) as answer:
            _require(answer, "clickhouse")
            return frozenset((await answer.text()).split())


def _require(answer: aiohttp.ClientResponse, server: str) -> None:
    if answer.status != 200:
        raise TrialFailed(f"{server} answered {answer.status} when it was asked what it holds")
