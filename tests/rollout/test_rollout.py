"""A new release rolls out under load. `make rehearse-rollout` also measures for how long partitions rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.rollout.chart import NoHelm, read_workload
from tests.rollout.measure import longest_gap
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


async def test_gap_is_measured_from_its_beginning_and_in_one_partition(database: str) -> None:
    """A partition that rests across the beginning of a roll would look well, were only what follows looked at."""
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    effects = [(0, -4.0), (0, 3.0), (0, 3.5), (1, -0.5), (1, 0.5), (1, 2.5)]
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE TABLE effect (partition int, at timestamptz)")
        await connection.executemany(
            "INSERT INTO effect VALUES ($1, $2)", [(each, noon + timedelta(seconds=at)) for each, at in effects]
        )

        assert await longest_gap(connection, noon, noon + timedelta(minutes=1)) == 7.0
        assert await longest_gap(connection, noon, noon + timedelta(seconds=2)) == 1.0
        with pytest.raises(LookupError, match="no partition has two effects"):
            await longest_gap(connection, noon - timedelta(seconds=2), noon - timedelta(seconds=1))
    finally:
        await connection.close()
