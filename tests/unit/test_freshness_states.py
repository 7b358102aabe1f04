"""OK, late, stalled, rewound, paused: what to make of what readers see, without false alarm."""

from __future__ import annotations

import pytest

from projections.freshness import Freshness, freshness_of
from tidegate.console.lag import PartitionStatus
from tidegate.console.status import JobStatus, Verdict
from tidegate.console.views import View

HOUR = 3600.0


@pytest.mark.parametrize(
    "seconds, still, is_paused, is_rewound, expected",
    [
        pytest.param(0.0, HOUR, False, False, Freshness.OK, id="idle for an hour, caught up and visible"),
        pytest.param(1.0, HOUR, False, False, Freshness.OK, id="the first record after an idle hour"),
        pytest.param(4.0, 0.5, False, False, Freshness.OK, id="within the SLA"),
        pytest.param(6.0, 0.5, False, False, Freshness.LATE, id="beyond it, and moving"),
        pytest.param(HOUR, 1.0, False, False, Freshness.LATE, id="far beyond it, and moving: no stall"),
        pytest.param(61.0, 61.0, False, False, Freshness.STALLED, id="behind, and nothing has moved for a minute"),
        pytest.param(None, HOUR, False, False, Freshness.STALLED, id="of unknown age, and nothing moves"),
        pytest.param(None, 1.0, False, False, Freshness.LATE, id="of unknown age: nobody could say that it is fresh"),
        pytest.param(HOUR, HOUR, True, False, Freshness.PAUSED, id="an operator's pause is no stall"),
        pytest.param(HOUR, 1.0, False, True, Freshness.REWOUND, id="moved back, and on its way"),
        pytest.param(HOUR, HOUR, False, True, Freshness.STALLED, id="moved back, and it does not move"),
        pytest.param(0.0, HOUR, False, True, Freshness.OK, id="moved back in an emptied topic: nothing to read"),
    ],
)
def test_states_tell_trouble_from_rest(
    seconds: float | None, still: float, is_paused: bool, is_rewound: bool, expected: Freshness
) -> None:
    """G11: each state is somebody's next step, and a quiet night or a deliberate pause is nobody's."""
    state = freshness_of(seconds, sla=5.0, still_seconds=still, is_paused=is_paused, is_rewound=is_rewound)

    assert state is expected


def partition(state: Freshness, reader_seconds: float | None, *, settled: float = 0.0) -> PartitionStatus:
    return PartitionStatus("orders", 0, 9, 9, 0, settled, view=View(5, 0.0), reader_seconds=reader_seconds, state=state)


@pytest.mark.parametrize(
    "state, reader_seconds, expected",
    [
        (Freshness.OK, 1.0, Verdict.OK),
        (Freshness.LATE, 60.0, Verdict.LATE),
        (Freshness.STALLED, 600.0, Verdict.STALLED),
        (Freshness.REWOUND, 600.0, Verdict.REWOUND),
    ],
)
def test_job_is_judged_by_what_readers_see(state: Freshness, reader_seconds: float, expected: Verdict) -> None:
    """The consumer may have settled everything: a store that does not refresh is late all the same."""
    status = JobStatus("search", "ProjectionJob", 5.0, [partition(state, reader_seconds)], {})

    assert status.verdict is expected
    assert status.reader_seconds == reader_seconds


def test_late_partition_is_not_hidden_by_a_rewound_one() -> None:
    """Two partitions, two states: the one that is nobody's doing is the job's."""
    both = [partition(Freshness.REWOUND, 600.0), partition(Freshness.LATE, 60.0)]

    assert JobStatus("search", "ProjectionJob", 5.0, both, {}).verdict is Verdict.LATE
