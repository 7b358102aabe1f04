"""Rows that have left the audit by their retention, and what the topic may still say of them."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidegate_kernel.audit_anchor import Anchor, _is_expected
from tidegate_kernel.audit_chain import Chain
from tidegate_kernel.permissions import Receipt

CUT = Chain(UUID(int=1), 3, Receipt(10, b"e"), 0, [], [], cut=Receipt(7, b"\x07"))


@pytest.mark.parametrize(
    "chain, seq, digits, is_expected",
    [
        (UUID(int=1), 8, "08", True),
        (UUID(int=1), 7, "07", False),  # the last that has left, as the table still knows it
        (UUID(int=1), 7, "ff", True),  # another one: the table is asked, has none, and the difference is told
        (UUID(int=1), 6, "06", False),
        (UUID(int=2), 8, "08", False),  # of another database
    ],
)
def test_topic_is_compared_with_what_the_table_has_to_have(
    chain: UUID, seq: int, digits: str, is_expected: bool
) -> None:
    """The topic is kept for ever: what has left the table by its retention is no restore to an earlier time."""
    assert _is_expected(Anchor(str(chain), seq, digits, "then", "here"), CUT) is is_expected
