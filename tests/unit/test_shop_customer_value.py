"""The shop's fold: what a customer is worth, from orders and amendments in any order."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime

import pytest

from examples.shop.customer_value.value import MAPPINGS, CustomerValue, add_order, customer_of, value_document
from examples.shop.orders import Order
from tests.unit.records import StoredRecord
from tidegate import Event, Rejected, Scope

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(order_id: str, cents: int, *, version: int = 1, day: int = 1) -> Event[Order]:
    order = Order(order_id, "00003", date(1997, 1, day), 2, cents, version=version)
    return Event(
        f"e-{order_id}-{version}", "order.placed", order, StoredRecord(b""), NOON, scope=Scope("aurora", "vinyl")
    )


def folded(events: tuple[Event[Order], ...]) -> CustomerValue:
    state = None
    for each in events:
        state = add_order(state, each)
    assert state is not None
    return state


def test_a_value_is_the_same_in_whatever_order_events_arrive() -> None:
    """Orders of one customer stand in several partitions; an amendment may come before its order."""
    events = [event("a", 5), event("a", 7, version=2), event("b", 1, day=9), event("c", 2, day=3)]

    values = {str(value_document("k", folded(each))) for each in itertools.permutations(events)}

    assert len(values) == 1
    document = value_document("k", folded(tuple(events)))
    assert (document["orders"], document["cents"], document["last_order_on"]) == (3, 10, date(1997, 1, 9))
    assert document.keys() == MAPPINGS["properties"].keys()


def test_customers_of_two_tenants_are_two() -> None:
    """Both may have a customer 00003."""
    assert customer_of(event("a", 5)) == "aurora/00003"


@pytest.mark.parametrize("cents", [-1, 10**12 + 1])
def test_an_absurd_total_is_rejected(cents: int) -> None:
    """It would be the best customer of all, for ever."""
    with pytest.raises(Rejected):
        add_order(None, event("a", cents))
