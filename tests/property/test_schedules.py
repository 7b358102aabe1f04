"""The property test of the guarantees: any schedule of faults, against the real road on a real Postgres."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.schedule import Schedule, schedules
from tests.property.stage import Stage

SCHEDULES = int(os.environ.get("TIDEGATE_PROPERTY_SCHEDULES", "200"))


@pytest.mark.timeout(1200)
@settings(
    max_examples=SCHEDULES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(schedule=schedules())
def test_the_guarantees_hold_under_any_schedule(stage: Stage, schedule: Schedule) -> None:
    """G1 to G7 and G9: whatever is delivered, duplicated, failing, revoked or killed, in any order."""
    stage.play(schedule)
