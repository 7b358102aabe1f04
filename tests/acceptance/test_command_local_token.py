"""The local stack's own token: made by `migrate`, found by commands of that directory, by nobody else."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli import Cli
from tidegate.stack.names import ServerName

pytestmark = [pytest.mark.servers, pytest.mark.timeout(150)]


@pytest.fixture
def local(cli: Cli, tmp_path: Path) -> Iterator[Cli]:
    """Typed in a directory whose stack has this database: nothing in the environment says where servers are."""
    here, cache = tmp_path / "service", tmp_path / "cache"
    stack = cache / "tidegate" / "stack" / here.as_posix().strip("/").replace("/", "-")
    here.mkdir()
    stack.mkdir(parents=True)
    lines = [f"{name.setting}={cli.environment[name.setting]}" for name in ServerName]
    (stack / "env").write_text("\n".join(lines))
    made = Cli({"XDG_CACHE_HOME": str(cache)}, here)
    yield made
    made.close()


def test_commands_of_the_stacks_directory_just_work(local: Cli, cli: Cli, tmp_path: Path) -> None:
    """Whoever tries Tidegate on a laptop should not have to learn of tokens first."""
    migrated = local.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "made: token 'local-stack'" in migrated.stderr
    (file,) = tmp_path.rglob("token")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    created = local.run("tokens", "create", "another", "--role", "operator")
    again = local.run("migrate")
    elsewhere = cli.run("tokens", "create", "third", "--role", "operator")
    given = local.run("tokens", "create", "third", "--role", "operator", TIDEGATE_TOKEN=created.stdout.strip())
    by_its_dsn = cli.run("tokens", "create", "fourth", "--role", "viewer", TIDEGATE_TOKEN_FILE=str(file))

    assert created.returncode == 0, created.stderr
    assert (again.returncode, "made: token" in again.stderr) == (0, False)
    assert elsewhere.returncode == 3, "another directory has no token"
    assert given.returncode == 3, "a token that is given comes first"
    assert by_its_dsn.returncode == 0, by_its_dsn.stderr
    text = file.read_text().strip()
    assert text.startswith("tg_")
    for done in (migrated, created, again, elsewhere, given):
        assert text not in done.stdout + done.stderr
