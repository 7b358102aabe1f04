"""The property test of the guarantees: any schedule of faults, against the real road on a real Postgres.

`TIDEGATE_PROPERTY_SCHEDULES` asks for more of them, `TIDEGATE_PROPERTY_SEED` for others than everybody plays.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.property.examples import EXAMPLES, Example
from tests.property.schedule import Kind, Schedule, schedules
from tests.property.stage import Stage

# Two or three minutes on two quiet cores.
_SCHEDULES = int(os.environ.get("TIDEGATE_PROPERTY_SCHEDULES", "1000"))
_SEED = os.environ.get("TIDEGATE_PROPERTY_SEED")

# A probe that is cancelled in the tick in which it was made was never awaited: nothing is lost by it.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_the_kept_schedules_stay_right(stage: Stage, example: Example) -> None:
    """Failures that were found once, and scenes that must never fail, are played before anything is drawn."""
    stage.play(example.schedule)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(Kind))
def test_the_guarantees_hold_under_any_schedule(stage: Stage, kind: Kind) -> None:
    """G1 to G7 and G9: whatever is delivered, duplicated, failing, revoked or killed, in any order."""

    @settings(
        max_examples=_SCHEDULES // len(Kind),
        derandomize=_SEED is None,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(schedule=schedules(kind))
    def play(schedule: Schedule) -> None:
        stage.play(schedule)

    if _SEED is not None:
        play = seed(int(_SEED))(play)
    play()
