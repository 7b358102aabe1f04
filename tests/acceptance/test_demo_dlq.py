"""`make demo-dlq` in small: a bad release, its repair killed in the middle, and a check that can also fail."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from examples.shop.demo.place import Place
from examples.shop.demo.purchases import read_purchases
from examples.shop.demo.sabotage import Sabotage, spoil
from examples.shop.demo_dlq.pickup import choose
from tests.acceptance.demos import ROOT, Outcome, environment_of, run_demo
from tidegate.stack.names import StackAddresses

# As few as have forty customers with ten orders, and some to spare.
_ORDERS = 3000
# Half a minute of it is the lease of the runner that is killed.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


def _run_demo(stack: StackAddresses, report: Path, **settings: str) -> Outcome:
    return run_demo("examples.shop.demo_dlq", stack, report, orders=_ORDERS, **settings)


async def _checked(place: Place) -> tuple[int | None, str]:
    arguments = ("--prefix", place.prefix, "--orders", str(_ORDERS), "--recovered", "300")
    checker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.check_shop", *arguments),
        env=place.environment,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await checker.communicate()
    return checker.returncode, printed.decode()


async def test_three_hundred_dead_orders_are_replayed_through_a_kill_and_nothing_differs_from_the_source(
    stack: StackAddresses, tmp_path: Path
) -> None:
    """Cases 56, 57 and 61 as one story: dead, rehearsed, replayed, killed, resumed; once, everywhere, unseen by others.
    And the check behind it can say no: an order that was dead and is counted twice is named."""
    outcome = _run_demo(stack, tmp_path / "report.json")

    report = outcome.report
    assert outcome.exit_code == 0, outcome.printed
    assert (report["ok"], report["letters"], report["keys"], report["parked"] > 0) == (True, 300, 40, True)
    assert (report["rehearsal"]["passing"], report["rehearsal"]["parked_passing"]) == (300, report["parked"])
    assert 0 < report["kill"]["resolved"] < report["kill"]["letters"] == 300
    assert len(report["others"]) >= 5
    assert not any(report["others"].values())
    assert len(report["figures"]) >= 30
    assert all(expected == found for _, expected, found in report["figures"])
    for told in ("$ tidegate dlq stats", "--rehearse", "--yes", "--resume", "killed", "Expected = found", "Next"):
        assert told in outcome.printed

    purchases = read_purchases(_ORDERS)
    dead = choose(purchases).open_orders
    dsn = f"{stack.postgres_dsn.rpartition('/')[0]}/shop_demo_{report['trial']}"
    database = await asyncpg.connect(dsn)
    place = Place(report["trial"], Path(), {**environment_of(stack), "TIDEGATE_POSTGRES_DSN": dsn})
    async with aiohttp.ClientSession() as http:
        victims = [purchase for purchase in purchases if purchase.order_id in dead]
        order = await spoil(Sabotage.DOUBLE, place, victims, database=database, http=http)
        code, told = await _checked(place)
    await database.close()
    assert (code, order in dead, order in told) == (1, True, True)


def test_a_release_that_still_has_the_bug_is_stopped_by_its_rehearsal(stack: StackAddresses, tmp_path: Path) -> None:
    """Nothing is replayed that would fail again, the exit code says so, and the orders still dead are named."""
    outcome = _run_demo(stack, tmp_path / "report.json", DEMO_SABOTAGE="unmended")

    failures = " ".join(outcome.report["failures"])
    assert (outcome.exit_code, outcome.report["run"]) == (1, None)
    assert outcome.report["rehearsal"]["failing"] > 0
    assert outcome.report["rehearsal"]["passing"] == 0
    assert all(f"order {order} is still dead" in failures for order in choose(read_purchases(_ORDERS)).open_orders)


def test_demo_dlq_without_servers_says_what_is_missing() -> None:
    """The first thing that goes wrong for whoever does not use make."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    command = [sys.executable, "-m", "examples.shop.demo_dlq"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "TIDEGATE_KAFKA_BOOTSTRAP" in ended.stderr
    assert "Traceback" not in ended.stderr
