"""A new release rolls out under load. `make rehearse-rollout` also measures for how long partitions rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollout.chart import NoHelm, read_workload
from tests.rollout.rehearsal import Servers, pod_environment, rehearse
from tidegate.stack.names import StackAddresses

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

_RATE = 200.0


def test_pods_have_the_settings_of_the_chart_and_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is rehearsed is what would be installed, whatever a developer has in his shell."""
    monkeypatch.setenv("TIDEGATE_DRAIN_TIMEOUT", "1")
    try:
        workload = read_workload("drainTimeoutSeconds=40")
    except NoHelm as error:
        pytest.skip(str(error))

    given = {**workload.environment, **pod_environment("topic", tmp_path, Servers("kafka:9092", "postgresql://shop"))}

    assert (given["TIDEGATE_DRAIN_TIMEOUT"], workload.grace_seconds) == ("40", 50)
    assert given["TIDEGATE_KAFKA_BOOTSTRAP"] == "kafka:9092"


@pytest.mark.parametrize("is_static", [False, True], ids=["deployment", "static"])
async def test_a_roll_loses_and_repeats_nothing(stack: StackAddresses, database: str, is_static: bool) -> None:
    """G1, G2, G10: with the chart's own grace, surge and identities each record is handled once; all pods end well."""
    try:
        workload = read_workload(f"worker.staticMembership={str(is_static).lower()}")
    except NoHelm as error:
        pytest.skip(str(error))

    rolled = await rehearse(workload, rate=_RATE, at=Servers(stack.kafka_bootstrap, database))

    assert rolled.produced > 0
    assert (rolled.lost, rolled.doubled, rolled.repeated, set(rolled.exit_codes)) == (0, 0, 0, {0})
