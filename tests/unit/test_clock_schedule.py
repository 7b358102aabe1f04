"""When jobs by the clock are due: expressions, both clock changes, downtimes, jitter."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.jobs.clockwork.cron import parse_cron
from tidegate.jobs.clockwork.schedule import (
    MOST_COUNTED,
    Cron,
    Every,
    Occurrence,
    Schedule,
    each_occurrence,
    jitter,
    newest_occurrence,
)
from tidegate_kernel.errors import Misconfigured

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def due(schedule: Schedule, after: str, until: str) -> list[str]:
    """Every occurrence in (after, until], as the zone's wall clock shows it with its offset."""
    zone = ZoneInfo(schedule.zone) if isinstance(schedule, Cron) else UTC
    found, instant = [], schedule.next_after(at(after))
    while instant <= at(until):
        found.append(f"{instant.astimezone(zone):%d %H:%M %z}")
        instant = schedule.next_after(instant)
    return found


@pytest.mark.parametrize(
    "expression, after, expected",
    [
        ("30 2 * * *", "2026-05-01T02:29:59Z", "2026-05-01T02:30:00Z"),
        ("30 2 * * *", "2026-05-01T02:30:00Z", "2026-05-02T02:30:00Z"),
        ("*/15 * * * *", "2026-05-01T02:31:10Z", "2026-05-01T02:45:00Z"),
        ("5/20 9-17 * * mon-fri", "2026-05-01T17:45:00Z", "2026-05-04T09:05:00Z"),
        ("0 0 1,15 * *", "2026-05-02T00:00:00Z", "2026-05-15T00:00:00Z"),
        ("0 0 13 * fri", "2026-05-09T00:00:00Z", "2026-05-13T00:00:00Z"),  # either day will do
        ("0 0 */2 * 1", "2026-05-01T00:00:00Z", "2026-05-11T00:00:00Z"),  # a star restricts nothing: both must hold
        ("0 12 29 feb *", "2096-03-01T00:00:00Z", "2104-02-29T12:00:00Z"),
        ("0 0 * * 7", "2026-05-01T00:00:00Z", "2026-05-03T00:00:00Z"),
        ("0 0 * * 5-7", "2026-05-02T12:00:00Z", "2026-05-03T00:00:00Z"),
        ("@daily", "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z"),
    ],
)
def test_expressions_mean_what_cron_means_by_them(expression: str, after: str, expected: str) -> None:
    """Operators bring their crontabs along."""
    assert Cron(expression, "UTC").next_after(at(after)) == at(expected)


@pytest.mark.parametrize(
    "expression, told",
    [
        ("30 2 * *", "4 fields"),
        ("60 2 * * *", "'60' is no minute"),
        ("0 24 * * *", "'24' is no hour"),
        ("0 0 0 * *", "'0' is no day of the month"),
        ("0 0 * foo *", "'foo' is no month"),
        ("0 0 * * fri-mon", "'fri-mon' is no day of the week"),
        ("*/0 * * * *", "'\\*/0' is no minute"),
        ("*-5 * * * *", "is no minute"),
        ("0 0 31 2,4 *", "never comes"),
        ("0 0 L * *", "'L' is no day of the month"),
        ("١٥ 2 * * *", "'١٥' is no minute"),
        ("*/٥ 2 * * *", "is no minute"),
        ("0 ２ * * *", "'２' is no hour"),
        ("9" * 450 + " 2 * * *", "is no minute"),
        ("*/" + "9" * 450 + " 2 * * *", "is no minute"),
        ("9" * 10_000 + " 2 * * *", "has 10008 characters"),
    ],
)
def test_what_says_nothing_is_refused_by_field(expression: str, told: str) -> None:
    """A schedule that is misread runs at the wrong time for months before anybody looks."""
    with pytest.raises(Misconfigured, match=told):
        parse_cron(expression)


def test_unknown_zone_is_refused() -> None:
    """An offset that is guessed is wrong for half of the year."""
    with pytest.raises(Misconfigured, match="Europe/Berlino"):
        Cron("0 0 * * *", "Europe/Berlino")


@pytest.mark.parametrize(
    "zone, after, until, expected",
    [
        (BERLIN, "2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        (NEW_YORK, "2026-03-07T12:00-05:00", "2026-03-09T12:00-04:00", ["08 03:00 -0400", "09 02:30 -0400"]),
        # The clock jumps from 02:00 to 02:30: half past two is there.
        (LORD_HOWE, "2026-10-03T12:00+10:30", "2026-10-05T12:00+11:00", ["04 02:30 +1100", "05 02:30 +1100"]),
    ],
)
def test_time_that_spring_leaves_out_comes_at_the_end_of_the_gap(
    zone: str, after: str, until: str, expected: list[str]
) -> None:
    """A nightly job that skipped a night would be noticed by the customers; one that ran twice, by the bank."""
    assert due(Cron("30 2 * * *", zone), after, until) == expected


def test_several_times_in_a_gap_come_once() -> None:
    """Four quarters of an hour that does not exist are not four runs at once, nor is the one due at its end another."""
    quarters, with_end = Cron("*/15 2 * * *", BERLIN), Cron("30 2,3 * * *", BERLIN)

    assert due(quarters, "2026-03-29T00:00+01:00", "2026-03-29T12:00+02:00") == ["29 03:00 +0200"]
    assert due(with_end, "2026-03-29T00:00+01:00", "2026-03-29T12:00+02:00") == ["29 03:00 +0200", "29 03:30 +0200"]
    both = Cron("0 2,3 * * *", BERLIN)
    assert due(both, "2026-03-29T00:00+01:00", "2026-03-29T12:00+02:00") == ["29 03:00 +0200"]


@pytest.mark.parametrize(
    "zone, minute, after, until, expected",
    [
        (BERLIN, 30, "2026-10-24T12:00+02:00", "2026-10-26T12:00+01:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        (NEW_YORK, 30, "2026-10-31T12:00-04:00", "2026-11-02T12:00-05:00", ["01 01:30 -0400", "02 01:30 -0500"]),
        # The clock goes from 02:00 back to 01:30.
        (LORD_HOWE, 45, "2026-04-04T12:00+11:00", "2026-04-06T12:00+10:30", ["05 01:45 +1100", "06 01:45 +1030"]),
    ],
)
def test_time_that_autumn_repeats_comes_once(
    zone: str, minute: int, after: str, until: str, expected: list[str]
) -> None:
    """The invoices of a night are sent once."""
    hour = 2 if zone == BERLIN else 1
    assert due(Cron(f"{minute} {hour} * * *", zone), after, until) == expected


def test_beat_is_never_silent_for_an_hour() -> None:
    """What runs every hour runs every hour: through both rounds of the repeated one, and past the missing one."""
    beat = Cron("15 * * * *", BERLIN)

    autumn = due(beat, "2026-10-25T00:30+02:00", "2026-10-25T03:30+01:00")
    spring = due(beat, "2026-03-29T00:30+01:00", "2026-03-29T04:30+02:00")

    assert autumn == ["25 01:15 +0200", "25 02:15 +0200", "25 02:15 +0100", "25 03:15 +0100"]
    assert spring == ["29 01:15 +0100", "29 03:15 +0200", "29 04:15 +0200"]


def test_beat_in_a_zone_that_changes_by_half_an_hour() -> None:
    """Lord Howe shows 01:30 to 02:00 twice in autumn, and goes from 02:00 to 02:30 in spring."""
    beat = Cron("*/20 * * * *", LORD_HOWE)

    assert due(beat, "2026-04-05T01:30+11:00", "2026-04-05T02:00+10:30") == [
        "05 01:40 +1100",
        "05 01:40 +1030",
        "05 02:00 +1030",
    ]
    assert due(beat, "2026-10-04T01:30+10:30", "2026-10-04T03:00+11:00") == [
        "04 01:40 +1030",
        "04 02:40 +1100",
        "04 03:00 +1100",
    ]


def test_day_that_a_zone_leaves_out_is_a_gap() -> None:
    """Samoa had no 30 December 2011: noon of that day came with the first instant of the next."""
    noon = Cron("0 12 * * *", "Pacific/Apia")

    assert due(noon, "2011-12-29T06:00-10:00", "2012-01-01T00:00+14:00") == [
        "29 12:00 -1000",
        "31 00:00 +1400",
        "31 12:00 +1400",
    ]


def test_midnight_that_does_not_exist() -> None:
    """Beirut changes at midnight: the day begins at one, and so does what runs at its beginning."""
    assert due(Cron("0 0 * * *", "Asia/Beirut"), "2025-03-29T12:00+02:00", "2025-03-31T12:00+03:00") == [
        "30 01:00 +0300",
        "31 00:00 +0300",
    ]


CHANGES = [
    (BERLIN, "2026-03-29"),
    (BERLIN, "2026-10-25"),
    (NEW_YORK, "2026-03-08"),
    (NEW_YORK, "2026-11-01"),
    (LORD_HOWE, "2026-04-05"),
    (LORD_HOWE, "2026-10-04"),
    ("Asia/Beirut", "2026-03-29"),
    ("Asia/Beirut", "2026-10-25"),
    ("America/St_Johns", "2026-03-08"),
    ("Asia/Kolkata", "2026-06-15"),
]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Cron, datetime]:
    """A schedule, and the day on which its zone's clock changes."""
    minute = draw(st.sampled_from(["30", "*", "*/7", "0", "5,45", "10-20"]))
    hour = draw(st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "2,3", "0-22", "23", "*/6"]))
    day = draw(st.sampled_from(["*", "1,8,25,29", "*/2"]))
    weekday = draw(st.sampled_from(["*", "sun", "mon-fri"]))
    zone, change = draw(st.sampled_from(CHANGES))
    return Cron(f"{minute} {hour} {day} * {weekday}", zone), at(f"{change}T00:00Z")


def as_the_rules_say(schedule: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """Minute by minute, in (start, end]: what the wall shows now, has shown before, and has just left out."""
    times, zone = parse_cron(schedule.expression), ZoneInfo(schedule.zone)

    def names(shown: datetime) -> bool:
        return times.is_on(shown.date()) and shown.hour in times.hours and shown.minute in times.minutes

    minute = timedelta(minutes=1)
    instant = start - timedelta(hours=3)  # longer than any repetition
    last = instant.astimezone(zone).replace(tzinfo=None)
    seen = {last}
    while instant < end:
        instant += minute
        shown = instant.astimezone(zone).replace(tzinfo=None)
        left_out = [last + minute * n for n in range(1, int((shown - last) / minute))]
        if times.is_beat:
            is_due = names(shown)
        else:
            is_due = (names(shown) and shown not in seen) or any(names(each) for each in left_out)
        if is_due and instant > start:
            yield instant
        seen.add(shown)
        last = shown


@given(chosen=schedules(), hours=st.integers(-30, 0))
@settings(max_examples=50, deadline=None)
def test_every_occurrence_follows_from_the_rules(chosen: tuple[Cron, datetime], hours: int) -> None:
    """The rules, told once more in the most simple-minded way: no minute is lost or doubled around a change."""
    schedule, change = chosen
    start = change + timedelta(hours=hours)
    end = start + timedelta(hours=40)
    found, instant = [], schedule.next_after(start)
    while instant <= end:
        found.append(instant)
        instant = schedule.next_after(instant)

    assert found == list(as_the_rules_say(schedule, start, end))


@given(chosen=schedules(), minutes=st.integers(0, 3000), more=st.integers(0, 3000))
@settings(max_examples=25, deadline=None)
def test_newest_and_each_agree_however_the_time_is_cut(chosen: tuple[Cron, datetime], minutes: int, more: int) -> None:
    """Replicas look at different moments: the occurrences they see together are those of one that looks once."""
    schedule, change = chosen
    start = change - timedelta(days=1)
    middle, end = start + timedelta(minutes=minutes), start + timedelta(minutes=minutes + more)
    at_once = each_occurrence(schedule, after=start, now=end, most=MOST_COUNTED)
    in_parts = [
        *each_occurrence(schedule, after=start, now=middle, most=MOST_COUNTED),
        *each_occurrence(schedule, after=middle, now=end, most=MOST_COUNTED),
    ]
    newest = newest_occurrence(schedule, after=start, now=end)

    assert [each.scheduled_at for each in at_once] == [each.scheduled_at for each in in_parts]
    assert newest == (Occurrence(at_once[-1].scheduled_at, len(at_once) - 1) if at_once else None)


def test_downtime_is_one_run_that_tells_what_was_missed() -> None:
    """Case 117: ten minutes of downtime of a job that runs every minute are one run, with the ten in its books."""
    minutely = Cron("* * * * *", "UTC")

    after_downtime = newest_occurrence(minutely, after=at("2026-05-01T12:00Z"), now=at("2026-05-01T12:11:20Z"))

    assert after_downtime == Occurrence(at("2026-05-01T12:11Z"), missed=10)


def test_catch_up_brings_the_last_ones_and_tells_the_rest() -> None:
    """Declared catch-up is bounded: a year of downtime is no year of runs."""
    hourly = Every(timedelta(hours=1))

    caught_up = each_occurrence(hourly, after=at("2026-05-01T00:00Z"), now=at("2026-05-01T10:30Z"), most=3)

    assert caught_up == [
        Occurrence(at("2026-05-01T08:00Z"), missed=7),
        Occurrence(at("2026-05-01T09:00Z")),
        Occurrence(at("2026-05-01T10:00Z")),
    ]
    assert each_occurrence(hourly, after=at("2026-05-01T00:00Z"), now=at("2026-05-01T00:30Z"), most=3) == []


def test_years_of_downtime_are_not_counted_one_by_one() -> None:
    """A schedule that was stopped in 2020 must not hold up its scheduler for minutes today."""
    minutely, now = Cron("* * * * *", BERLIN), at("2026-05-01T12:00:30Z")

    newest = newest_occurrence(minutely, after=at("2020-01-01T00:00Z"), now=now)
    last = each_occurrence(minutely, after=at("2020-01-01T00:00Z"), now=now, most=2)

    assert newest == Occurrence(at("2026-05-01T12:00Z"), missed=MOST_COUNTED - 1)
    assert [each.scheduled_at for each in last] == [at("2026-05-01T11:59Z"), at("2026-05-01T12:00Z")]


def test_rare_occurrence_is_found_after_a_long_downtime() -> None:
    """Looking back for the newest one must not stop short of a yearly job, nor of one that has not been due since."""
    yearly = Cron("0 3 1 1 *", BERLIN)

    assert newest_occurrence(yearly, after=at("2020-06-01T00:00Z"), now=at("2026-05-01T00:00Z")) == Occurrence(
        at("2026-01-01T03:00+01:00"), missed=5
    )
    assert newest_occurrence(yearly, after=at("2026-02-01T00:00Z"), now=at("2026-05-01T00:00Z")) is None


def test_every_is_due_at_the_same_instants_in_every_process() -> None:
    """It counts from a fixed instant, not from when somebody started."""
    every = Every(timedelta(minutes=90), offset=timedelta(minutes=5))

    first = every.next_after(at("2026-05-01T00:00Z"))

    assert every.next_after(first - timedelta(seconds=1)) == first
    assert every.next_after(first) == first + timedelta(minutes=90)
    with pytest.raises(Misconfigured, match="at least a second"):
        Every(timedelta(0))


def test_jitter_is_the_same_for_all_replicas_and_spreads_jobs() -> None:
    """Replicas that disagreed would run twice; jobs that agreed would all run at midnight."""
    midnight, most = at("2026-05-01T00:00Z"), timedelta(minutes=10)
    delays = {jitter(f"shop/job-{n}", midnight, most) for n in range(100)}

    assert jitter("shop/a", midnight, most) == jitter("shop/a", midnight.astimezone(ZoneInfo(BERLIN)), most)
    assert jitter("shop/a", midnight, most) != jitter("shop/a", midnight + timedelta(days=1), most)
    assert len(delays) == 100
    assert timedelta(0) <= min(delays) < timedelta(minutes=1)
    assert timedelta(minutes=9) < max(delays) < most
