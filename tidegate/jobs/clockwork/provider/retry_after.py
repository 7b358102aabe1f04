"""What a provider means by `Retry-After`, in seconds or as a date, right or not."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

UNSAID = 15.0
"""Seconds that a provider is left alone which did not say how long, or said nothing that can be understood."""

LEAST = 1.0
LONGEST = 3600.0
"""A header must not stop a service for a year. Whoever still wants to be left alone then says so again."""

# Digits alone: int() also takes '１２' and '1_000', float() takes 'inf' and 'nan'.
_SECONDS = re.compile(r"[0-9]{1,10}")


def pause_seconds(header: str | None, *, now: datetime) -> float:
    """Returns for how long to leave the provider alone, LEAST to LONGEST. `now`: by the provider's clock."""
    said = _said(header, now)
    return UNSAID if said is None else min(max(said, LEAST), LONGEST)


def _said(header: str | None, now: datetime) -> float | None:
    text = "" if header is None else header.strip()
    if text.isascii() and text.isdigit():
        return float(text) if _SECONDS.fullmatch(text) else LONGEST
    at = http_date(text)
    return None if at is None else (at - now).total_seconds()


def http_date(text: str | None) -> datetime | None:
    """Returns the instant that an HTTP date names, in UTC; None if it is none."""
    try:
        at = parsedate_to_datetime(text or "")
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    try:
        return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # in the first or last hours that there are
