"""Two nights in which clocks change, by a clock that is moved by hand: three schedulers on the real database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from examples.shop.demo.place import Place
from examples.shop.reconciliation.job import nightly_reconciliation
from tidegate import testing


class Change(NamedTuple):
    """Two nights around a change, and when the runs of 02:15 in Berlin are due in them, in UTC."""

    name: str
    begin: datetime
    due: Sequence[datetime]


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CHANGES = (
    # 02:15 comes twice: the first one counts.
    Change("autumn", _at("2026-10-24T12:00"), (_at("2026-10-25T00:15"), _at("2026-10-26T01:15"))),
    # 02:15 does not come: the end of the gap counts, 03:00.
    Change("spring", _at("2026-03-28T12:00"), (_at("2026-03-29T01:00"), _at("2026-03-30T00:15"))),
)


async def runs_of(place: Place, change: Change) -> Mapping[datetime, int]:
    """How many runs three schedulers made in the two nights, by what each was made for."""
    job = replace(nightly_reconciliation(), jitter=timedelta(0), overlap="wait")  # nobody works them off
    return await testing.scheduled_runs(
        job,
        db=place.environment["TIDEGATE_POSTGRES_DSN"],
        service=f"{place.prefix}{change.name}",
        since=change.begin,
        until=change.begin + timedelta(days=2),
    )
