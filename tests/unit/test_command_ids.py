"""UUIDv7: ids whose day the inbox can read."""

from datetime import UTC, datetime

from tidegate_kernel.uuid7 import uuid7

_AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def test_id_carries_its_time_version_and_variant() -> None:
    """The inbox finds an event's day in its id: another layout would be another day."""
    made = uuid7(_AT)
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == int(_AT.timestamp() * 1000)


def test_ids_of_one_instant_differ() -> None:
    """Two events sent at once must not be one event to the inbox."""
    assert len({uuid7(_AT) for _ in range(1000)}) == 1000
