"""Moments as people type them: `24h` for as long ago, or a time in ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tidegate.commands.backfill import instant
from tidegate.commands.durations import duration
from tidegate_kernel.clock import SystemClock


def moment(option: str, text: str) -> datetime:
    """Returns the time that `text` says, in UTC. Raises Misconfigured, naming the option."""
    if re.fullmatch(r"\d+[a-zA-Z]", text):
        return SystemClock().now() - duration(option, text)
    return instant(option, text).astimezone(UTC)
