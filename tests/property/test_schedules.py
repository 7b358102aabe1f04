"""The property test of the guarantees: any schedule of faults, against the real road on a real Postgres.

`TIDEGATE_PROPERTY_SCHEDULES` asks for more of them, `TIDEGATE_PROPERTY_SEED=20260301` for others. By default all runs
draw the same: a commit is not to turn red for what an older one did.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.property.ensemble import Ensemble, Outcome, Share
from tests.property.examples import EXAMPLES, Example
from tests.property.schedule import Kind
from tests.property.stage import Stage

# Three minutes or so on two quiet cores: runs over letters make a schedule three times as dear as one without.
_SCHEDULES = int(os.environ.get("TIDEGATE_PROPERTY_SCHEDULES", "2000"))
_SEED = int(os.environ.get("TIDEGATE_PROPERTY_SEED", "1"))
# Small enough that no process plays alone for long, and that drawing begins afresh now and then.
_SHARE = 125

# A probe that is cancelled in the tick in which it was made was never awaited: nothing is lost by it.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_the_kept_schedules_stay_right(stage: Stage, example: Example) -> None:
    """Failures that were found once, and scenes that must never fail, are played before anything is drawn."""
    stage.play(example.schedule)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(Kind))
def test_the_guarantees_hold_under_any_schedule(ensemble: Ensemble, kind: Kind) -> None:
    """G1 to G9: whatever is delivered, duplicated, failing, revoked, killed, replayed or discarded, in any order."""
    shares = math.ceil(_SCHEDULES / len(Kind) / _SHARE)

    outcomes = ensemble.play([Share(kind, _SEED, number, _SHARE) for number in range(shares)])

    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    again = f"TIDEGATE_PROPERTY_SEED={_SEED} TIDEGATE_PROPERTY_SCHEDULES={_SCHEDULES}"
    assert not failures, "\n".join([*failures, f"the same schedules again: {again}"])
    played, seconds = sum(outcome.played for outcome in outcomes), sum(outcome.seconds for outcome in outcomes)
    assert played >= shares * _SHARE, f"only {played} schedules were played"
    print(f"\n{played} schedules, {seconds / played * 1000:.0f} ms each; struck: {_struck(outcomes)}")


def _struck(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return dict(sum((outcome.struck for outcome in outcomes), Counter[str]()).most_common())
