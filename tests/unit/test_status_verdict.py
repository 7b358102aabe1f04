"""What the status makes of a job: what rests on purpose is neither late nor hidden."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from consumers.intents import Intent, IntentKind
from tidegate.console.lag import PartitionStatus
from tidegate.console.status import JobStatus, Verdict

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def behind(number: int, seconds: float | None, *, obstacle: str | None = None) -> PartitionStatus:
    return PartitionStatus("orders", number, 5, 9, 4, seconds, obstacle=obstacle)


def intent(kind: IntentKind = IntentKind.PAUSE) -> Intent:
    return Intent(1, kind, None, None, None, "looking", "alice", NOW, None, None)


def verdict(
    partitions: Sequence[PartitionStatus], intents: Sequence[Intent] = (), resting: Sequence[str] = ()
) -> Verdict:
    return JobStatus("search", "ProjectionJob", 5.0, partitions, {}, intents, resting).verdict


LATE, FRESH = behind(0, 60.0), behind(1, 1.0)


@pytest.mark.parametrize(
    "partitions, resting, expected",
    [
        pytest.param([LATE, FRESH], ["orders:0"], Verdict.PAUSED, id="only what rests is late"),
        pytest.param([LATE, FRESH], ["orders:1"], Verdict.LATE, id="what does not rest is late"),
        pytest.param([behind(0, None), FRESH], ["orders:0"], Verdict.PAUSED, id="of what rests the age is unknown"),
        pytest.param([FRESH], [], Verdict.PAUSED, id="a tenant is paused, and none of its records has come up"),
        pytest.param([behind(0, 60.0, obstacle="gap")], ["orders:0"], Verdict.BLOCKED, id="a block is no pause"),
    ],
)
def test_a_pause_excuses_what_it_makes_rest_and_nothing_else(
    partitions: Sequence[PartitionStatus], resting: Sequence[str], expected: Verdict
) -> None:
    """--fail-if-late is in people's alerts: a deliberate pause must not wake them, and must not hide the rest."""
    assert verdict(partitions, [intent()], resting) is expected


def test_a_flood_is_a_block() -> None:
    """The job stopped itself: a person has to look."""
    assert verdict([FRESH], [intent(IntentKind.FLOOD)], ["orders:1"]) is Verdict.BLOCKED


def test_letters_that_wait_at_the_bound_are_a_block() -> None:
    """Case 41: nothing is handled meanwhile, and it is no wish of an operator."""
    status = JobStatus("ledger", "ConsumerJob", None, [FRESH], {}, backlog="topic 'x' has not taken 5 dead letters")
    assert status.verdict is Verdict.BLOCKED


def test_the_seconds_of_what_rests_are_told_all_the_same() -> None:
    """G11: readers see old data, whoever wanted it so."""
    assert JobStatus("search", "ProjectionJob", 5.0, [LATE, FRESH], {}, [intent()], ["orders:0"]).seconds_behind == 60.0
