"""Durations as people type them: `90d`, `2h`, `30m`, `45s`."""

from __future__ import annotations

import re
from datetime import timedelta

from tidegate_kernel.errors import Misconfigured

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TEXT = re.compile(r"([0-9]{1,6})([smhdw])")
# Longer ones end beyond the year 9999, which neither Python nor anybody's calendar has.
_LONGEST = timedelta(days=36_525)


def duration(option: str, text: str) -> timedelta:
    """Returns the duration that `text` says, longer than none. Raises Misconfigured, naming the option."""
    found = _TEXT.fullmatch(text.strip().lower())
    told = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta(0)
    if not told:
        raise Misconfigured(f"{option} {text!r} is no duration, as in 90d, 2h or 30m")
    if told > _LONGEST:
        raise Misconfigured(f"{option} {text!r} is longer than 100 years; durations are as in 90d, 2h or 30m")
    return told
