"""Where the ledger differs from the books, account by account."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from tidegate import Context, Page, Text

# An account is compared while it is at rest. Who has ordered since the books were closed has orders that may be
# in one of the two and on their way to the other, and is looked at another night.
_DIFFERENCES = """
WITH booked AS (
    SELECT o.customer_id, count(*) AS orders, sum(o.cents)::bigint AS cents, max(o.placed_at) AS newest
    FROM order_record AS o
    WHERE o.tenant = $1 AND o.brand = $2 AND ($3::text IS NULL OR o.customer_id > $3)
    GROUP BY o.customer_id
),
account AS (
    SELECT l.customer_id COLLATE "C" AS customer_id, l.orders, l.cents
    FROM ledger AS l
    WHERE l.tenant = $1 AND l.brand = $2 AND ($3::text IS NULL OR l.customer_id COLLATE "C" > $3)
)
SELECT customer_id, coalesce(b.orders, 0) AS orders, coalesce(b.cents, 0) AS cents, coalesce(a.cents, 0) AS found_cents
FROM booked AS b
FULL JOIN account AS a USING (customer_id)
JOIN books_closed AS c ON c.tenant = $1 AND c.brand = $2 AND (b.newest IS NULL OR b.newest < c.closed_until)
WHERE (coalesce(b.orders, 0), coalesce(b.cents, 0)) <> (coalesce(a.orders, 0), coalesce(a.cents, 0))
ORDER BY customer_id
LIMIT $4
"""


class Limits(msgspec.Struct, frozen=True):
    """What a run may set right by itself. More than `cents` on one account is for a person to look at."""

    cents: Annotated[
        int,
        Text(
            en="the most that may be set right on one account, in cents",
            ru="сколько самое большее можно исправить на одном счёте, в центах",
        ),
    ] = 100_000


@dataclass(frozen=True, slots=True)
class LedgerDifferences:
    """Which accounts do not say what the books say?"""

    page: Page


@dataclass(frozen=True, slots=True)
class CorrectAccount:
    """Set an account right, if that moves no more than `most_cents`."""

    customer_id: str
    most_cents: int


def correction_of(difference: CorrectAccount) -> CorrectAccount:
    return difference


def customer_of(difference: CorrectAccount) -> str:
    """The account's place in the order that they are asked for in."""
    return difference.customer_id


async def ledger_differences(query: LedgerDifferences, ctx: Context[Any]) -> Sequence[CorrectAccount]:
    """The next accounts of the tenant and brand that differ from the books, as far as these are closed."""
    page = query.page
    rows = await ctx.db.fetch(_DIFFERENCES, page.scope.tenant, page.scope.brand, page.after, page.limit)
    return [CorrectAccount(row["customer_id"], page.occasion.input.cents) for row in rows]
