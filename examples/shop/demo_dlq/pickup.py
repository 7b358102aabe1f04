"""Which orders the bug hits: counted from the source file, the same 300 of the same 40 customers each time.

Only customers who try the new pickup have the new field in their orders. Each leaves it open (null) in the first seven
or eight orders, in the order of time, and chooses a shop in all later ones. Records are keyed by customer here, so the
ledger has an order among the orders of a customer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import msgspec

from examples.shop.demo.messages import Kind, Message, message, order_state
from examples.shop.demo.place import TrialFailed
from examples.shop.demo.purchases import Purchase
from examples.shop.demo.story import Step, is_redelivered

CUSTOMERS, OPEN_ORDERS = 40, 300
# More than the eight that are left open and one that is sent twice: some order of each comes later.
_FEWEST_ORDERS = 10
_CHOSEN = "harbour"


@dataclass(frozen=True, slots=True)
class Pickup:
    """Who tries it, and the ids of the orders that were left open."""

    customers: frozenset[str]
    open_orders: frozenset[str]

    def message(self, kind: Kind, purchase: Purchase, sent_at: datetime, *, run_at: datetime) -> Message:
        """The shop's record, keyed by customer, with the new field for those who try it.

        A cancellation stays keyed by order: its key is all that says which order it is about.
        """
        plain = message(kind, purchase, sent_at, run_at=run_at)
        if plain.value is None:
            return plain
        keyed = plain._replace(key=purchase.customer_id.encode())
        if kind is Kind.VIEWED or purchase.customer_id not in self.customers:
            return keyed
        chosen = None if purchase.order_id in self.open_orders else _CHOSEN
        return keyed._replace(value=msgspec.json.encode(order_state(kind, purchase) | {"pickup_shop": chosen}))

    def later_orders(self, steps: Sequence[Step]) -> frozenset[str]:
        """The orders that come behind an open one of their customer: the bug does not hit them, and they must wait."""
        behind: set[str] = set()
        later: set[str] = set()
        for step in steps:
            if step.kind is not Kind.PLACED or step.purchase is None or step.is_repeat:
                continue
            if step.purchase.order_id in self.open_orders:
                behind.add(step.purchase.customer_id)
            elif step.purchase.customer_id in behind:
                later.add(step.purchase.order_id)
        return frozenset(later)


def in_time(purchases: Sequence[Purchase]) -> list[Purchase]:
    """As the shop took them: by day. The file tells them customer by customer."""
    return sorted(purchases, key=lambda purchase: (purchase.purchased_on, purchase.line))


def choose(purchases: Sequence[Purchase]) -> Pickup:
    """The first 40 customers with ten orders or more. Raises TrialFailed where there are not so many."""
    of_customer: dict[str, list[Purchase]] = defaultdict(list)
    for purchase in in_time(purchases):
        of_customer[purchase.customer_id].append(purchase)
    loyal = [customer for customer in sorted(of_customer) if len(of_customer[customer]) >= _FEWEST_ORDERS][:CUSTOMERS]
    if len(loyal) < CUSTOMERS:
        raise TrialFailed(f"{len(purchases)} purchases have only {len(loyal)} loyal customers; DEMO_ORDERS=3000 has 40")
    each, more = divmod(OPEN_ORDERS, CUSTOMERS)
    left_open = [
        purchase.order_id
        for number, customer in enumerate(loyal)
        for purchase in islice(_sent_once(of_customer[customer]), each + (number < more))
    ]
    return Pickup(frozenset(loyal), frozenset(left_open))


def _sent_once(purchases: Sequence[Purchase]) -> Sequence[Purchase]:
    """What cannot be decoded has no id to know it by: a second delivery of it would be a second letter."""
    return [purchase for purchase in purchases if not is_redelivered(purchase, Kind.PLACED)]
