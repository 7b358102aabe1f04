"""An account is set right: money, what is written down of it, and what others are told, in one transaction."""

from dataclasses import dataclass
from typing import Any

import msgspec

from examples.shop.reconciliation.differences import CorrectAccount
from tidegate import Context, Rejected

# Whoever buys at this moment waits for the row or is waited for: `record_purchases` writes it, too.
_OPEN = """
INSERT INTO ledger (tenant, brand, customer_id, orders, cents)
VALUES ($1, $2, $3, 0, 0)
ON CONFLICT (tenant, brand, customer_id) DO UPDATE SET orders = ledger.orders
RETURNING orders, cents
"""
_BOOKED = """
SELECT count(o.order_id) AS orders, coalesce(sum(o.cents), 0)::bigint AS cents,
    coalesce(max(o.placed_at) >= min(c.closed_until), false) AS is_moving
FROM books_closed AS c
LEFT JOIN order_record AS o ON o.tenant = c.tenant AND o.brand = c.brand AND o.customer_id = $3
WHERE c.tenant = $1 AND c.brand = $2
HAVING count(*) > 0
"""
_SET_RIGHT = "UPDATE ledger SET orders = $4, cents = $5 WHERE tenant = $1 AND brand = $2 AND customer_id = $3"
_WRITE_DOWN = """
INSERT INTO ledger_correction (tenant, brand, difference, customer_id, orders, cents, run, token, correlation_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""


class LedgerCorrected(msgspec.Struct, frozen=True):
    """The account was set right: by so many orders, and so many cents, to what it says now."""

    customer_id: str
    orders: int
    cents: int
    now_orders: int
    now_cents: int


@dataclass(frozen=True, slots=True)
class Corrections:
    """Sets accounts right, and tells `topic`."""

    topic: str

    async def correct(self, command: CorrectAccount, ctx: Context[Any]) -> None:
        """The account says what the books say, once the transaction commits; raises Rejected above the limit.

        Looked at again under the account's lock: what has become right meanwhile, or has moved since the books were
        closed, is left alone.
        """
        account = (ctx.scope.tenant, ctx.scope.brand, command.customer_id)
        found = await ctx.db.fetchrow(_OPEN, *account)
        booked = await ctx.db.fetchrow(_BOOKED, *account)
        if found is None or booked is None or booked["is_moving"]:
            return
        orders, cents = booked["orders"] - found["orders"], booked["cents"] - found["cents"]
        if not orders and not cents:
            return
        if abs(cents) > command.most_cents:
            raise Rejected(f"more than {command.most_cents} cents: somebody has to look at this account")
        await ctx.db.execute(_SET_RIGHT, *account, booked["orders"], booked["cents"])
        await self._tell(ctx, LedgerCorrected(command.customer_id, orders, cents, booked["orders"], booked["cents"]))

    async def _tell(self, ctx: Context[Any], said: LedgerCorrected) -> None:
        run = ctx.run
        assert run is not None  # the command comes from a job by the clock alone
        place = (ctx.scope.tenant, ctx.scope.brand, ctx.idempotency_key, said.customer_id)
        await ctx.db.execute(_WRITE_DOWN, *place, said.orders, said.cents, run.id, run.token, run.correlation_id)
        ctx.publish(self.topic, said, key=said.customer_id, type="ledger.corrected")
