"""What a command imports, as modules and not as seconds: everybody who types it waits for them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.core import TyperGroup

from tests.architecture.source import PACKAGES, ROOT
from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command

# What declarations and Postgres take, in whichever command.
DECLARATIONS = {
    "asyncpg",
    "msgspec",
    "prometheus_client",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "structlog",
}
# Clients, servers and tools: each takes a command that does not use it longer than its own work.
HEAVY = {
    "aiohttp",
    "aiokafka",
    "alembic",
    "chdb",
    "clickhouse_connect",
    "elastic_transport",
    "elasticsearch",
    "numpy",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "sqlalchemy",
    "starlette",
    "testcontainers",
    "uvicorn",
    "uvloop",
}


def test_list_of_commands_needs_none_of_their_modules() -> None:
    """`tidegate --help` is what a newcomer types first: nothing but what prints it, whatever the commands need."""
    imported = _imported("--help")

    assert _packages(imported) & (HEAVY | DECLARATIONS) == set()
    assert _ours(imported) == {
        "tidegate",
        "tidegate.commands",
        "tidegate.commands.early",
        "tidegate.commands.face",
        "tidegate.commands.late",
        "tidegate.commands.options",
        "tidegate.commands.readable",
        "tidegate.version",
        "tidegate_kernel",
        "tidegate_kernel.errors",
        "tidegate_kernel.permissions",
    }
    assert _packages(imported) >= {"rich", "typer"}, "the search finds what is there"


@pytest.mark.parametrize(
    "command, needed",
    [
        ("dlq list", set()),
        ("pause", set()),
        ("tokens create", set()),
        ("audit list", set()),
        ("migrate", set()),
        ("stack up", set()),
        ("status", {"aiokafka"}),
        ("run", {"aiokafka", "opentelemetry", "starlette", "uvicorn", "uvloop"}),
    ],
)
def test_command_imports_no_client_that_it_does_not_use(command: str, needed: set[str]) -> None:
    """Half a second before each of a hundred commands is a minute of somebody's incident."""
    assert _packages(_imported(*command.split(), "--help")) & HEAVY == needed


@pytest.mark.parametrize("name", COMMANDS)
def test_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    """The sentences stand in two places so that the list comes quickly; they must not come apart."""
    command = load_command(name, COMMANDS[name])

    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].help
    assert command.hidden == COMMANDS[name].is_hidden
    assert command.name == name
    assert isinstance(command, TyperGroup) or bool(command.epilog) != command.hidden


def _imported(*arguments: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "tidegate", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
    return set(re.findall(r"^import time:.*\|\s*(\S+)$", done.stderr, re.MULTILINE))


def _packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def _ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in PACKAGES}
