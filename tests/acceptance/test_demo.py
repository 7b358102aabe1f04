"""The demo as `make demo` runs it, in small: a real trial that can also fail."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from examples.check_shop.expected import JOBS, POISON, poison_reasons
from examples.shop.demo.place import Place
from examples.shop.demo.purchases import read_purchases
from examples.shop.demo.sabotage import Sabotage, spoil
from tests.acceptance.demos import ROOT, Outcome, environment_of, run_demo
from tidegate.stack.names import StackAddresses

# More than two batches of the ledger a partition, so that a worker can be killed in the middle of one.
_ORDERS = 3000
# A trial of this size takes 20 seconds on a quiet machine with two cores.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


def _run_demo(stack: StackAddresses, report: Path, **settings: str) -> Outcome:
    return run_demo("examples.shop.demo", stack, report, orders=_ORDERS, **settings)


@pytest.fixture(scope="module")
def outcome(stack: StackAddresses, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One trial that several tests look at."""
    return _run_demo(stack, tmp_path_factory.mktemp("demo") / "report.json")


@pytest.fixture(scope="module")
def place(stack: StackAddresses, outcome: Outcome) -> Iterator[Place]:
    """Where that trial ran; its database is held, so that no other trial clears it away meanwhile."""
    run = outcome.report["run"]
    dsn = f"{stack.postgres_dsn.rpartition('/')[0]}/shop_demo_{run}"
    with asyncio.Runner() as runner:
        held = runner.run(asyncpg.connect(dsn))
        yield Place(run, Path(), {**environment_of(stack), "TIDEGATE_POSTGRES_DSN": dsn})
        runner.run(held.close())


def test_demo_ends_well_with_every_figure_as_expected(outcome: Outcome) -> None:
    """The sentence that the whole project stands for."""
    assert outcome.exit_code == 0, outcome.printed
    assert outcome.report["ok"] is True
    assert len(outcome.report["figures"]) >= 15
    assert all(expected == found for _, expected, found in outcome.report["figures"])


def test_demo_kills_a_worker_that_had_written_and_not_committed(outcome: Outcome) -> None:
    """A kill between two batches would prove nothing."""
    kill = outcome.report["kill"]
    assert kill["transactions"]
    assert kill["batches"]
    assert set(outcome.report["worker_exits"].values()) == {0}


def test_demo_kills_a_worker_whose_sink_was_ahead_of_its_position(outcome: Outcome) -> None:
    """The other half of a crash: written to the sink, not settled, and written again by the next owner."""
    applied = outcome.report["kill"]["applied"]
    assert applied
    for each in applied:
        assert each["standing"]["job"] in ("order-search", "revenue-by-day")
        assert each["first"]["offset"] >= each["standing"]["next_offset"]
    assert "not settled" in outcome.printed


def test_demo_drops_repeats_in_every_job(outcome: Outcome) -> None:
    """Without a duplicate, exactly once is easy."""
    assert outcome.report["repeats"] > 0
    assert outcome.report["duplicates_dropped"].keys() == set(JOBS)
    assert all(outcome.report["duplicates_dropped"].values())


def test_demo_shows_each_reason_that_poison_must_have(outcome: Outcome) -> None:
    """At least a dozen kinds, each where it must fail and only there."""
    assert outcome.report["poison"] == len(POISON) >= 12
    for job in JOBS:
        reasons = list(poison_reasons(job).values())
        assert outcome.report["dead_letters"][job] == {reason: reasons.count(reason) for reason in set(reasons)}


def test_demo_tells_what_it_saw_and_what_to_type_next(outcome: Outcome) -> None:
    """A trial that nobody can read convinces nobody."""
    for told in ("killed", "duplicates dropped", "Dead letters by reason", "One dead letter", "Next", "p99"):
        assert told in outcome.printed


@pytest.mark.parametrize("how", Sabotage)
async def test_checker_names_the_order_whose_effect_was_spoiled(place: Place, how: Sabotage) -> None:
    """A checker that cannot say no is no proof; one that says no without a name is little help."""
    purchases = read_purchases(_ORDERS)
    async with aiohttp.ClientSession() as http:
        database = await asyncpg.connect(place.environment["TIDEGATE_POSTGRES_DSN"])
        order = await spoil(how, place, purchases, database=database, http=http)
        await database.close()

    checked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.check_shop", "--prefix", place.prefix, "--orders", str(_ORDERS)),
        env=place.environment,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await checked.communicate()

    assert checked.returncode == 1
    assert order in printed.decode()


def test_sabotaged_demo_fails_and_names_the_order(stack: StackAddresses, tmp_path: Path) -> None:
    """The exit code is what a pipeline looks at."""
    outcome = _run_demo(stack, tmp_path / "report.json", DEMO_SABOTAGE="stale")
    assert outcome.exit_code == 1
    assert outcome.report["sabotaged"] in " ".join(outcome.report["failures"])


def test_demo_without_servers_says_what_is_missing(tmp_path: Path) -> None:
    """The first thing that goes wrong for whoever does not use make."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    command = [sys.executable, "-m", "examples.shop.demo"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "TIDEGATE_KAFKA_BOOTSTRAP" in ended.stderr
    assert "Traceback" not in ended.stderr
