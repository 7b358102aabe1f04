"""How the ledger stands at one moment: its accounts, its dead letters, and what is parked behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from examples.shop.demo.purchases import Purchase

LEDGER = "customer-ledger"

_LETTERS = """
SELECT l.state, l.key, l.value, l.reason, l.fingerprint
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code = $1
"""
_PARKED = """
SELECT p.value
FROM tidegate.parked AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE j.code = $1
"""
_OTHERS = """
SELECT count(*)
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code <> $1
"""
_ACCOUNTS = "SELECT tenant, brand, customer_id, orders, cents FROM ledger"

Account = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """`dead` and `parked` are ids of orders; `letters` counts by state, `others` those of all other jobs."""

    letters: Mapping[str, int]
    dead: frozenset[str]
    keys: int
    kinds: Sequence[tuple[str, str]]
    parked: frozenset[str]
    others: int
    accounts: Mapping[Account, tuple[int, int]]

    @property
    def resolved(self) -> int:
        return self.letters.get("resolved", 0)

    @property
    def left(self) -> frozenset[str]:
        """The orders that the ledger must not have yet."""
        return self.dead | self.parked


async def standing(database: Any) -> Standing:
    """Everything as one snapshot of Postgres shows it."""
    async with (
        database.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        letters = await connection.fetch(_LETTERS, LEDGER)
        parked = await connection.fetch(_PARKED, LEDGER)
        accounts = await connection.fetch(_ACCOUNTS)
        others = await connection.fetchval(_OTHERS, LEDGER)
    return Standing(
        letters=Counter(row["state"] for row in letters),
        dead=frozenset(_order(row["value"]) for row in letters if row["state"] != "resolved"),
        keys=len({row["key"] for row in letters}),
        kinds=sorted({(row["reason"], row["fingerprint"]) for row in letters}),
        parked=frozenset(_order(row["value"]) for row in parked),
        others=others,
        accounts={(row["tenant"], row["brand"], row["customer_id"]): (row["orders"], row["cents"]) for row in accounts},
    )


def differences(
    found: Mapping[Account, tuple[int, int]], purchases: Sequence[Purchase], *, without: Collection[str]
) -> Iterator[str]:
    """One sentence for each account that is not the sum of its customer's orders, those in `without` left out."""
    expected: dict[Account, tuple[int, int]] = {}
    for purchase in purchases:
        if purchase.order_id not in without:
            account = (purchase.tenant, purchase.brand, purchase.customer_id)
            orders, cents = expected.get(account, (0, 0))
            expected[account] = (orders + 1, cents + purchase.cents)
    for account in sorted(expected.keys() | found.keys()):
        wanted, is_ = expected.get(account, (0, 0)), found.get(account, (0, 0))
        if wanted != is_:
            yield (
                f"account {'/'.join(account)} should have {wanted[0]} orders and {wanted[1]} cents, "
                f"has {is_[0]} and {is_[1]}"
            )


def _order(value: bytes) -> str:
    return str(msgspec.json.decode(value)["order_id"])
