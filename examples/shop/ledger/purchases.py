"""From a placed order to the customer's account."""

from collections.abc import Sequence
from dataclasses import dataclass

from examples.shop.orders import Order
from tidegate import Context, Event, Rejected

# One statement for all purchases of a batch. Customers are locked in one order, whoever writes: no deadlocks.
_ADD_PURCHASES = """
INSERT INTO ledger AS account (tenant, brand, customer_id, orders, cents)
SELECT $1, $2, purchase.customer_id, count(*), sum(purchase.cents)
FROM unnest($3::text[], $4::bigint[]) AS purchase (customer_id, cents)
GROUP BY purchase.customer_id
ORDER BY purchase.customer_id
ON CONFLICT (tenant, brand, customer_id) DO UPDATE
SET orders = account.orders + excluded.orders, cents = account.cents + excluded.cents
"""


@dataclass(frozen=True, slots=True)
class RecordPurchase:
    """Put an order's total on its customer's account."""

    customer_id: str
    cents: int


def to_purchase(event: Event[Order]) -> RecordPurchase:
    return RecordPurchase(event.data.customer_id, event.data.total_cents)


async def record_purchases(purchases: Sequence[RecordPurchase], ctx: Context[None]) -> None:
    """All purchases are on their accounts, once the transaction that also holds their claims commits."""
    if any(purchase.cents < 0 for purchase in purchases):
        raise Rejected("a purchase cannot have a negative total")
    customers = [purchase.customer_id for purchase in purchases]
    cents = [purchase.cents for purchase in purchases]
    await ctx.db.execute(_ADD_PURCHASES, ctx.scope.tenant, ctx.scope.brand, customers, cents)
