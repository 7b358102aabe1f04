"""Ids that carry their time: UUID version 7 (RFC 9562), which Python has from 3.14 on."""

from __future__ import annotations

import secrets
from datetime import datetime
from uuid import UUID


def uuid7(at: datetime) -> UUID:
    """Returns a new id whose first 48 bits are the milliseconds of `at`; the other 74 free bits are random."""
    milliseconds = int(at.timestamp() * 1000) & (1 << 48) - 1
    version_and_random = 0x7000 | secrets.randbits(12)
    variant_and_random = (0b10 << 62) | secrets.randbits(62)
    return UUID(int=milliseconds << 80 | version_and_random << 64 | variant_and_random)
