"""Durations as people type them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.commands.durations import duration
from tidegate_kernel.errors import Misconfigured


@pytest.mark.parametrize(
    "text, told",
    [
        ("45s", timedelta(seconds=45)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("90d", timedelta(days=90)),
        ("2w", timedelta(weeks=2)),
        (" 2H ", timedelta(hours=2)),
    ],
)
def test_duration_is_a_number_and_a_unit(text: str, told: timedelta) -> None:
    """What people write in tickets is what the command takes."""
    assert duration("--for", text) == told


@pytest.mark.parametrize("text", ["", "2", "0h", "-1h", "2 h", "1.5h", "2y", "1234567d", "２h", "999999w"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A pause of two somethings must not become a pause of two seconds."""
    with pytest.raises(Misconfigured, match=r"--for .* as in 90d"):
        duration("--for", text)
