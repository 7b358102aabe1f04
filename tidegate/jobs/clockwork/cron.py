"""Cron expressions of five fields: minute, hour, day of the month, month, day of the week."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from tidegate_kernel.errors import Misconfigured

_NICKNAMES = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
# ASCII alone: `int` also takes the digits of other scripts, which nobody reads as a time; and no more of them than a
# field has, as it refuses thousands with an error of its own.
_PART = re.compile(r"(?P<first>\*|\w{1,9})(?:-(?P<last>\w{1,9}))?(?:/(?P<step>\d{1,2}))?", re.ASCII)
_LONGEST_EXPRESSION = 500
# The longest that a day of a month can be away: a 29th of February around a year like 2100, which has none.
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    words: Mapping[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The minutes, hours and days that an expression names, as the clock on the wall shows them.

    Where both days of the month and days of the week are restricted, either will do, as in every cron.
    """

    minutes: Sequence[int]
    hours: Sequence[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    @property
    def is_beat(self) -> bool:
        """Whether it runs in every hour of the day: then it goes by the hours that pass, not by their names."""
        return len(self.hours) == 24

    def is_on(self, day: date) -> bool:
        """Whether it names that day."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def parse_cron(expression: str) -> CronTimes:
    """Returns what the expression names. Raises Misconfigured, naming the field, also for what never comes."""
    if len(expression) > _LONGEST_EXPRESSION:
        raise Misconfigured(
            f"cron expression {expression[:40]!r}… has {len(expression)} characters; {_LONGEST_EXPRESSION} are enough"
        )
    fields = _NICKNAMES.get(expression.strip().lower(), expression).split()
    if len(fields) != len(_FIELDS):
        raise Misconfigured(
            f"cron expression {expression!r} has {len(fields)} fields; it needs five: minute, hour, day of the month, "
            "month, day of the week, as in '30 2 * * mon-fri'"
        )
    minutes, hours, days, months, weekdays = (
        _numbers(expression, text, field) for text, field in zip(fields, _FIELDS, strict=True)
    )
    either_day = not fields[2].startswith("*") and not fields[4].startswith("*")
    if not either_day and not any(min(days) <= _LONGEST_MONTHS[month - 1] for month in months):
        raise Misconfigured(f"cron expression {expression!r} never comes: no such day in those months")
    return CronTimes(
        minutes=sorted(minutes),
        hours=sorted(hours),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(number % 7 for number in weekdays),
        either_day=either_day,
    )


def _numbers(expression: str, text: str, field: _Field) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _wrong(expression, field, part)
        found.update(_range(expression, match, field))
    return found


def _range(expression: str, match: re.Match[str], field: _Field) -> range:
    step = 1 if match["step"] is None else int(match["step"])
    if match["first"] == "*":
        first, last = field.least, field.most if field.name != "day of the week" else 6
        is_wrong = match["last"] is not None
    else:
        first = _number(expression, match["first"], field)
        # '5/10' is short for 'from 5 on, every 10'.
        alone = first if match["step"] is None else field.most
        last = alone if match["last"] is None else _number(expression, match["last"], field)
        is_wrong = last < first
    if is_wrong or step < 1:
        raise _wrong(expression, field, match[0])
    return range(first, last + 1, step)


def _number(expression: str, text: str, field: _Field) -> int:
    number = field.words.get(text.lower())
    if number is None and text.isdigit():
        number = int(text)
    if number is None or not field.least <= number <= field.most:
        raise _wrong(expression, field, text)
    return number


def _wrong(expression: str, field: _Field, part: str) -> Misconfigured:
    named = f", or {', '.join(field.words)}" if field.words else ""
    return Misconfigured(
        f"cron expression {expression!r}: {part!r} is no {field.name}; it takes {field.least}-{field.most}{named}, "
        "lists (1,2), ranges (1-5, upwards) and steps (*/10)"
    )
