"""Coordinates as people type them."""

import pytest

from tidegate.console.places import partition_of, place_of
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition


def test_coordinates_are_read_from_the_right() -> None:
    """The numbers come last; whatever stands before them is the topic."""
    assert place_of("shop.orders:3:18277") == (TopicPartition("shop.orders", 3), 18277)
    assert partition_of("shop.orders:3") == TopicPartition("shop.orders", 3)


@pytest.mark.parametrize("text", ["", "orders", "orders:3", ":3:4", "orders:x:4", "orders:3:-1", f"orders:3:{10**18}"])
def test_malformed_record_shows_the_form(text: str) -> None:
    """An example is quicker than a grammar; a number too large for Kafka never gets there."""
    with pytest.raises(Misconfigured, match="orders:3:18277"):
        place_of(text)


@pytest.mark.parametrize("text", ["", "orders", ":3", "orders:", "orders:x", "orders:-1"])
def test_malformed_partition_shows_the_form(text: str) -> None:
    """As above."""
    with pytest.raises(Misconfigured, match="orders:3"):
        partition_of(text)
