"""`testing.scheduled_runs`: what a schedule comes to in nights in which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.clockwork import minutely
from tidegate import Cron, testing

pytestmark = pytest.mark.servers


async def test_each_night_has_its_run_at_the_instant_that_the_rules_say(database: str) -> None:
    """Three schedulers race; 02:30 in Berlin comes twice in the first of these nights, and is due once."""
    job = minutely(trigger=Cron("30 2 * * *", "Europe/Berlin"), overlap="wait")
    since = datetime(2026, 10, 24, 12, tzinfo=UTC)

    found = await testing.scheduled_runs(
        job, db=database, service="nights", since=since, until=since + timedelta(days=2)
    )

    assert found == {datetime(2026, 10, 25, 0, 30, tzinfo=UTC): 1, datetime(2026, 10, 26, 1, 30, tzinfo=UTC): 1}


async def test_end_of_the_period_belongs_to_it(database: str) -> None:
    """A period cut in two must have the runs of the whole, however its steps fall."""
    job, since = minutely(trigger=Cron("30 2 * * *", "UTC")), datetime(2026, 5, 1, 2, tzinfo=UTC)

    found = await testing.scheduled_runs(
        job, db=database, service="cut", since=since, until=since + timedelta(minutes=30)
    )

    assert found == {since + timedelta(minutes=30): 1}
