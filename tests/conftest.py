"""What tests of every kind share: one stack of real servers, databases of their own, the rule about skipped tests."""

import asyncio
import contextlib
import itertools
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from tests.bouncer import Bouncer, running_bouncer
from tests.side_by_side import SideBySide, place_in_order
from tidegate.migrations.schema import migrate
from tidegate.stack.names import StackAddresses
from tidegate.stack.progress import Lines
from tidegate.stack.stack import Stack
from tidegate.stack.state import default_folder
from tidegate_kernel.postgres import connect

_ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
# A slow machine is no defect of a property.
settings.register_profile("tidegate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidegate")

_ADDRESSES = pytest.StashKey[StackAddresses]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SideBySide | None:
    return SideBySide(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place_in_order(item.nodeid))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The stack is up before the first test that wants it: fetching jars must not count against a test's time limit."""
    wanted = any("stack" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    borrowed = contextlib.ExitStack()
    session.config.add_cleanup(borrowed.close)
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        addresses = borrowed.enter_context(Stack(default_folder()).borrowed(Lines()))
    session.config.stash[_ADDRESSES] = StackAddresses.of(addresses)


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> StackAddresses:
    """Real servers, one set for the whole run: those that the environment names, those of `make up`, else fresh ones.

    What this run started ends with it, unless another run still uses it.
    """
    return pytestconfig.stash[_ADDRESSES]


@pytest.fixture(scope="session")
def run_id() -> str:
    """Different for every run of the tests: several may share one stack."""
    return secrets.token_hex(3)


@pytest.fixture
def unique_name(run_id: str, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that no other test and no other run uses, fit for topics, groups and indexes."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:33].strip("-")
    # What was cut off may be all that tells two variants of a parametrized test apart.
    whole = blake2b(request.node.nodeid.encode(), digest_size=3).hexdigest()
    numbers = itertools.count(1)
    return lambda what: f"{what}-{test}-{whole}-{run_id}-{next(numbers)}"


@pytest.fixture
def topic_prefix(unique_name: Callable[[str], str]) -> str:
    """Begins the names of all topics, groups and indexes of one test."""
    return unique_name("t")


@pytest.fixture(scope="session")
def database_template(stack: StackAddresses, run_id: str) -> Iterator[str]:
    """A database with Tidegate's whole schema, made once: the words of CREATE DATABASE that copy it."""
    name = f"template_{run_id}"

    async def create() -> None:
        await _administer(stack, f"CREATE DATABASE {name} TEMPLATE template0")
        await migrate(_dsn(stack, name))

    asyncio.run(create())
    yield f"TEMPLATE {name} STRATEGY {asyncio.run(_quickest_strategy(stack))}"
    asyncio.run(_administer(stack, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def database(stack: StackAddresses, database_template: str) -> AsyncIterator[str]:
    """The DSN of a database of this test's own that has Tidegate's schema and no rows."""
    async with _database(stack, database_template) as dsn:
        yield dsn


@pytest.fixture
async def empty_database(stack: StackAddresses) -> AsyncIterator[str]:
    """The DSN of a database of this test's own without any table."""
    async with _database(stack, "TEMPLATE template0") as dsn:
        yield dsn


@pytest.fixture
def bouncer(stack: StackAddresses, tmp_path: Path) -> Iterator[Bouncer]:
    """PgBouncer in transaction mode before the stack's Postgres, with fewer server connections than clients."""
    with running_bouncer(stack.postgres_dsn, tmp_path) as started:
        yield started


@contextlib.asynccontextmanager
async def _database(stack: StackAddresses, copying: str) -> AsyncIterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    await _administer(stack, f"CREATE DATABASE {name} {copying}")
    try:
        yield _dsn(stack, name)
    finally:
        await _administer(stack, f"DROP DATABASE {name} WITH (FORCE)")


async def _quickest_strategy(stack: StackAddresses) -> str:
    """Files are copied where that is memory; a disk would have to hold them twice before the copy is used."""
    async with connect(stack.postgres_dsn) as connection:
        place = await connection.fetchval("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
    return "FILE_COPY" if str(place).startswith("/dev/shm/") else "WAL_LOG"


def _dsn(stack: StackAddresses, database: str) -> str:
    return stack.postgres_dsn.rpartition("/")[0] + f"/{database}"


async def _administer(stack: StackAddresses, statement: str) -> None:
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


# A test that is skipped where it should run proves nothing and looks green. With CI=true it fails, unless
# tests/allowed_skips.txt has a line `node id | reason` for it (both may hold * and ?).


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if any(fnmatch(report.nodeid, test) and fnmatch(reason, allowed) for test, allowed in _allowed_skips()):
        return
    report.outcome = "failed"
    report.longrepr = (
        f"skipped with CI=true: {reason!r}; make it run, or name it with its reason in {_ALLOWED_SKIPS.name}"
    )


def _allowed_skips() -> list[tuple[str, str]]:
    if not _ALLOWED_SKIPS.exists():
        return []
    lines = [line.strip() for line in _ALLOWED_SKIPS.read_text().splitlines()]
    pairs = [line.partition("|") for line in lines if line and not line.startswith("#")]
    return [(test.strip().replace("[", "[[]"), reason.strip()) for test, _, reason in pairs]
