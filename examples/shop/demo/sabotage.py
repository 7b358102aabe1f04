"""Spoils one effect behind everybody's back, so that the checker can be seen to notice. Never part of a real trial."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, assert_never

import aiohttp

from examples.shop.demo.messages import Kind, order_state
from examples.shop.demo.place import Place, TrialFailed
from examples.shop.demo.purchases import Purchase

_APPLY_TWICE = """
UPDATE ledger SET orders = orders + 1, cents = cents + $4
WHERE tenant = $1 AND brand = $2 AND customer_id = $3
"""


class Sabotage(StrEnum):
    """DROP: one order is missing from the search. DOUBLE: one is twice on its account. STALE: one document is old."""

    DROP = "drop"
    DOUBLE = "double"
    STALE = "stale"


async def spoil(
    how: Sabotage, place: Place, purchases: Sequence[Purchase], *, database: Any, http: aiohttp.ClientSession
) -> str:
    """One order's effect is wrong now; returns the order's id."""
    purchase = _victim(how, purchases)
    document = f"{place.elasticsearch}/{place.index}-g1/_doc/{purchase.order_id}?refresh=true"
    match how:
        case Sabotage.DROP:
            await _call(http, "DELETE", document, None)
        case Sabotage.DOUBLE:
            account = (purchase.tenant, purchase.brand, purchase.customer_id)
            await database.execute(_APPLY_TWICE, *account, purchase.cents)
        case Sabotage.STALE:
            older = order_state(Kind.PLACED, purchase) | {"purchased_on": purchase.purchased_on.isoformat()}
            await _call(http, "PUT", document, older | {"tenant": purchase.tenant, "brand": purchase.brand})
        case _:
            assert_never(how)
    return purchase.order_id


def _victim(how: Sabotage, purchases: Sequence[Purchase]) -> Purchase:
    """An order whose effect the sabotage changes: only an amended one has an older state."""
    is_stale = how is Sabotage.STALE
    return next(p for p in purchases if p.cents > 0 and not p.is_cancelled and p.is_amended is is_stale)


async def _call(http: aiohttp.ClientSession, method: str, url: str, body: object) -> None:
    async with http.request(method, url, json=body) as answer:
        if answer.status not in (200, 201):
            raise TrialFailed(f"the sabotage did not work: {answer.status} {(await answer.text())[:200]}")
