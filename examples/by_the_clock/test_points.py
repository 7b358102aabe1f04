from datetime import UTC, datetime, timedelta

from examples.by_the_clock.points import app
from tidegate import testing

NIGHT = datetime(2026, 5, 1, tzinfo=UTC)


async def test_idle_points_expire_once(tidegate_postgres: str) -> None:
    async with testing.run(app, db=tidegate_postgres) as t:
        for customer, idle_days in (("ann", 400), ("ben", 10)):
            used_at = NIGHT - timedelta(days=idle_days)
            await t.db.execute("INSERT INTO account VALUES ('acme', $1, 30, $2)", customer, used_at)

        first = await t.run_job("expire-points", tenant="acme", at=NIGHT)
        again = await t.run_job("expire-points", tenant="acme", at=NIGHT)

        assert (first.state, first.processed, first.error) == ("done", 1, None)
        assert (again.state, again.processed) == ("done", 0)
        (told,) = t.published("points.expired")
        assert (told.key, told.data) == ("ann", {"customer_id": "ann", "points": 30})

        stricter = await t.run_job("expire-points", tenant="acme", parameters={"days": "7"})
        assert stricter.processed == 1
