"""What the chart types is what the command line takes, and what it sets is what settings may say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import cast

import httpx
import pytest
import typer
from typer.core import TyperGroup

from tests.acceptance.cli import Cli
from tests.chart.rendering import EXAMPLES, Object, containers, example, objects, only, own_containers, pods
from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command
from tidegate.stack.names import StackAddresses
from tidegate_kernel.settings import read_settings

# Typer has a copy of Click of its own, and no public name for this.
_UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
_SETS = [path.stem for path in EXAMPLES]


def _commands(values: str) -> Iterator[tuple[str, list[str]]]:
    for name, pod in pods(example(values)):
        for each in own_containers(pod):
            yield f"{name}/{each['name']}", list(each["args"])


def _parse(arguments: list[str]) -> None:
    """Raises a usage error for what the command line would not take. Nothing is run."""
    name, *rest = arguments
    command = load_command(name, COMMANDS[name])
    while isinstance(command, TyperGroup):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(name, rest)


@pytest.mark.parametrize("values", _SETS)
def test_every_command_is_one(values: str) -> None:
    """A renamed option would show as a crash of every pod, in production first."""
    found = list(_commands(values))
    assert len(found) >= 4
    for where, arguments in found:
        try:
            _parse(arguments)
        except _UsageError as error:
            pytest.fail(f"{where}: tidegate {' '.join(arguments)}: {error}")


def test_wrong_option_is_noticed() -> None:
    """Else the test above would pass whatever the chart types."""
    with pytest.raises(_UsageError, match="--phases"):
        _parse(["migrate", "--phases", "pre"])
    with pytest.raises(_UsageError, match="'later'"):
        _parse(["migrate", "--phase", "later"])
    with pytest.raises(_UsageError, match="--letters"):
        _parse(["dlq", "replay", "--letters", "one"])


@pytest.mark.parametrize("values", _SETS)
def test_settings_are_ones_that_a_worker_takes(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from the schema; that what is said agrees (drain, rebalance, heartbeats) only the worker knows."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    for name, value in only(example(values), "ConfigMap", "settings")["data"].items():
        if not name.endswith("_FILE"):  # such a file would have to be there
            monkeypatch.setenv(name, value)
    settings = read_settings()
    assert settings.http_host == "0.0.0.0"
    assert settings.drain_timeout < settings.kafka.rebalance_timeout


@pytest.fixture
def pod(stack: StackAddresses, database: str, topic_prefix: str) -> Iterator[Cli]:
    """Types as a pod of the release would: with its settings, but for the addresses of servers."""
    config = only(_release(), "ConfigMap", "settings")["data"]
    addresses = {
        "TIDEGATE_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "TIDEGATE_POSTGRES_DSN": database,
        "TIDEGATE_ELASTICSEARCH_URL": stack.elasticsearch_url,
        "TIDEGATE_CLICKHOUSE_URL": stack.clickhouse_url,
    }
    made = Cli({**config, **addresses, "SMALL_PREFIX": topic_prefix})
    yield made
    made.close()
    httpx.delete(f"{stack.elasticsearch_url}/{topic_prefix}-payments-g1", trust_env=False)
    httpx.delete(f"{stack.elasticsearch_url}/_index_template/tidegate-{topic_prefix}-payments-g1", trust_env=False)


def _release() -> Sequence[Object]:
    return objects(app="small:app", migrations={"createTopics": True, "topicReplication": 1})


@pytest.mark.timeout(300)
def test_rendered_commands_prepare_a_service_and_find_it_ready(pod: Cli) -> None:
    """The real program in the order of a release: topics, migrations, then `--check` of all that workers need."""
    before = only(_release(), "Job", "migrate-pre")["spec"]["template"]["spec"]
    after = only(_release(), "Job", "migrate-post")["spec"]["template"]["spec"]
    check = only(_release(), "Pod", "check")["spec"]["containers"][0]["args"]

    for container in [*containers(before), *containers(after)]:
        done = pod.run(*container["args"])
        assert done.returncode == 0, f"{container['args']}: {done.stderr}"
    checked = pod.run(*check)

    assert checked.returncode == 0, checked.stderr
    assert "need is there" in checked.stderr
