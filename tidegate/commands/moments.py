"""Moments as people type them: `24h` for as long ago, or a time in ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tidegate.commands.durations import duration
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured


def moment(option: str, text: str) -> datetime:
    """Returns the time that `text` says, in UTC. Raises Misconfigured, naming the option."""
    if re.fullmatch(r"\d+[a-zA-Z]", text):
        return SystemClock().now() - duration(option, text)
    try:
        return instant(option, text).astimezone(UTC)
    except Misconfigured as error:
        raise Misconfigured(f"{error}, and not as 24h for a day ago") from error


def instant(option: str, text: str) -> datetime:
    """Returns the aware time that `text` says; without a zone it is UTC. Raises Misconfigured."""
    try:
        told = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misconfigured(f"{option} {text!r} is no ISO 8601 time, as in 2026-03-01T12:00Z") from error
    return told if told.tzinfo is not None else told.replace(tzinfo=UTC)
