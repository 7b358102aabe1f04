"""A wrong call is one sentence on standard error and exit code 2, before anything is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import structlog

from tidegate.commands.face import run_command_line

_APPS = Path(__file__).parents[1] / "acceptance" / "apps"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The small service's folder, with no setting but the application."""
    monkeypatch.chdir(_APPS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIDEGATE_APP", "small:app")
    # An address that nobody asks: without one, the local stack's would be looked for.
    monkeypatch.setenv("TIDEGATE_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    yield
    structlog.reset_defaults()  # a command sends its logs to the standard error of this test


def _refusal(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_command_line()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("tidegate: ")
    assert told.count("\n") == 1
    return told


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "--all", "--app", "nowhere:app"], ["no module 'nowhere'"]),
        (["run", "--all", "--app", "small:nothing"], ["'small' has no attribute 'nothing'"]),
        (["run", "leger"], ["'leger'", "ledger, search"]),
        (["run"], ["--all", "ledger, search"]),
        (["run", "ledger", "--all"], ["or say --all"]),
        (["run", "--all", "--lanes", "0"], ["TIDEGATE_LANES"]),
        (["run", "--all", "--port", "70000"], ["TIDEGATE_HTTP_PORT"]),
        (["run", "ledger", "--backfill"], ["--from-checkpoint", "--from-beginning", "--from-time"]),
        (["run", "ledger", "--backfill", "--from-beginning", "--from-time", "2026-03-01"], ["needs one of"]),
        (["run", "ledger", "--backfill", "--from-time", "yesterday"], ["'yesterday'", "ISO 8601"]),
        (["run", "--all", "--backfill", "--from-beginning"], ["one job at a time"]),
        (["run", "ledger", "--from-beginning"], ["--backfill"]),
        (["send", "t", "--type", "x", "--json", "{"], ["--json is no JSON"]),
        (["send", "t", "--type", "x", "--json", "{}", "--id", "a", "--count", "2"], ["--id names one event"]),
        (["send", "small.payments", "--type", "payment.made", "--json", '{"payment": "p"}'], ["'ledger'", "cents"]),
        (["checkpoint", "create", "nightly"], ["--job", "--at"]),
        (["checkpoint", "create", "nightly", "--at", "noon"], ["--at 'noon'", "ISO 8601"]),
        (["topics", "create", "--also", "x:many"], ["NAME:PARTITIONS"]),
        (["find", "--key", "k", "small.payments:0:1"], ["one of TOPIC:PARTITION:OFFSET"]),
        (["find", "small.payments:0"], ["'small.payments:0'", "orders:3:18277"]),
        (["offsets", "show", "leger"], ["'leger'", "ledger, search"]),
        (["offsets", "set", "ledger", "small.payments", "--to", "1"], ["TOPIC:PARTITION, as in orders:3"]),
        (["offsets", "accept-gap", "ledger"], ["TOPIC:P, or --all"]),
        (["offsets", "adopt", "ledger", "small.payments:0", "--from", "here"], ["'here'", "'beginning', 'end'"]),
    ],
)
def test_wrong_call_names_the_thing_and_the_remedy(
    arguments: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever typed it should know the next thing to type."""
    message = _refusal(arguments, monkeypatch, capsys)
    for word in words:
        assert word in message


def test_wrong_variable_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value may be a password that was put into the wrong variable."""
    monkeypatch.setenv("TIDEGATE_KAFKA_SECURITY_PROTOCOL", "secret-word")
    message = _refusal(["run", "--all"], monkeypatch, capsys)
    assert "TIDEGATE_KAFKA_SECURITY_PROTOCOL" in message
    assert "secret-word" not in message


def test_schema_of_another_version_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old worker after a later version's clean-up, or a table dropped by hand: not a riddle of the driver's."""

    async def other_schema(_: str) -> None:
        raise asyncpg.UndefinedColumnError('column "owner" does not exist\nHINT: none')

    monkeypatch.setattr("tidegate.commands.run.require_schema", other_schema)
    message = _refusal(["run", "--all"], monkeypatch, capsys)
    assert 'column "owner" does not exist' in message
    assert "tidegate migrate" in message


def test_debug_shows_where_it_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line is too little for whoever looks for a defect of ours."""
    monkeypatch.setenv("TIDEGATE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["tidegate", "run", "leger"])
    with pytest.raises(ExceptionGroup) as raised:
        run_command_line()
    assert "'leger'" in repr(raised.value)


@pytest.mark.parametrize(
    "command", ["migrate", "topics create", "run", "status", "find", "checkpoint create", "send", "dev"]
)
def test_help_ends_with_examples(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example is copied; a list of options is not read."""
    monkeypatch.setattr(sys, "argv", ["tidegate", *command.split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        run_command_line()
    assert ended.value.code == 0
    assert f"$ tidegate {command}" in capsys.readouterr().out
