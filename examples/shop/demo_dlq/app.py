"""The shop in the two releases of this story: SHOP_RELEASE=4.1 has a bug in its ledger, 4.2 is mended.

The order service has begun to send `pickup_shop`: where the order will be fetched, null where the customer has not
chosen yet. Release 4.1 was written against an example with a name in it.
"""

import os
from dataclasses import replace

from examples.shop.app import shop
from examples.shop.ledger.job import customer_ledger
from examples.shop.ledger.purchases import to_purchase
from examples.shop.orders import Order
from tidegate import App, ConsumerJob, on

BUGGY, MENDED = "4.1", "4.2"


class OrderAsOf41(Order, frozen=True):
    """THE BUG: null is no str, so an order without a choice cannot be decoded."""

    pickup_shop: str = ""


class OrderAsOf42(Order, frozen=True):
    """Mended."""

    pickup_shop: str | None = None


_MODELS: dict[str, type[Order]] = {BUGGY: OrderAsOf41, MENDED: OrderAsOf42}


def shop_of(release: str, prefix: str = "") -> App:
    """The shop as of that release. The other jobs do not look at the new field, and have no bug."""
    today = shop(prefix)
    jobs = [_ledger_of(release, job) if isinstance(job, ConsumerJob) else job for job in today.jobs]
    return replace(today, jobs=jobs, version=release)


def _ledger_of(release: str, job: ConsumerJob) -> ConsumerJob:
    (orders,) = job.topics
    return replace(customer_ledger(orders), order="park", events=[on("order.placed", _MODELS[release], to_purchase)])


app = shop_of(os.environ.get("SHOP_RELEASE", MENDED), os.environ.get("SHOP_PREFIX", ""))
