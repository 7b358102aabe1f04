"""Keys of a page are in order by character or as numbers; of others Postgres is asked."""

from __future__ import annotations

import pytest

from tidegate.jobs.clockwork.ordering import is_by_character, is_by_number


@pytest.mark.parametrize(
    "keys",
    [[], ["b"], ["a", "b", "c"], ["10", "9x"], ["2026-05-01T02:00:00+00:00", "2026-05-01T02:00:00.5+00:00"]],
)
def test_keys_that_ascend_by_character_pass_unasked(keys: list[str]) -> None:
    """Nearly every page: it costs no statement."""
    assert is_by_character(keys)


@pytest.mark.parametrize("keys", [["b", "a"], ["10", "9", "11"], ["9", "10"], ["a", "a"], ["B", "a", "C"]])
def test_others_are_not_in_order_by_character(keys: list[str]) -> None:
    """What goes back leaves out what stands between."""
    assert not is_by_character(keys)


@pytest.mark.parametrize(
    "keys, is_in_order",
    [
        (["9", "10", "100"], True),
        (["10", "9"], False),
        (["9", "10x"], False),
        (["٩", "٩٩"], False),
        (["7", "07"], False),
    ],
)
def test_numbers_are_in_order_as_numbers(keys: list[str], is_in_order: bool) -> None:
    """`ORDER BY id` of a column of numbers, whose key is its text."""
    assert is_by_number(keys) is is_in_order
