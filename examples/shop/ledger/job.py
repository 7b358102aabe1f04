"""The job `customer-ledger`."""

from examples.shop.ledger.purchases import to_purchase
from examples.shop.orders import Order
from tidegate import ConsumerJob, Text, Topic, on


def customer_ledger(orders: Topic) -> ConsumerJob:
    """Takes placed orders only: what was bought stays bought, refunds have a ledger of their own."""
    return ConsumerJob(
        code="customer-ledger",
        topics=[orders],
        unlisted="skip",
        runbook="docs/runbooks/customer-ledger.md",
        tier="critical",
        purpose=Text(
            en="Puts the total of every placed order on its customer's account, once.",
            ru="Записывает сумму каждого оформленного заказа на счёт покупателя, один раз.",
        ),
        events=[on("order.placed", Order, to_purchase)],
    )
