"""What is not as it must be around a command is one sentence on standard error that names the thing and the remedy.

`tests/unit/test_command_misuse_sentences.py` has the wrong calls themselves; here servers and folders are wrong.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from tests.acceptance.cli import Cli

pytestmark = pytest.mark.timeout(120)
ALL_STARTS_ARE_FRESH = True


# A server that does not answer is nobody's typing mistake: the same words do it when it is back.
FAILED = 1


def _refusal(cli: Cli, *arguments: str, code: int = 2, **extra: str) -> str:
    done = cli.run(*arguments, **extra)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("tidegate: ")
    assert "Traceback" not in done.stderr
    return done.stderr


# These need no server.


@pytest.fixture(scope="module")
def alone() -> Cli:
    """No server answers: the addresses are those of a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    return Cli(
        {
            "TIDEGATE_APP": "small:app",
            "TIDEGATE_KAFKA_BOOTSTRAP": nobody,
            "TIDEGATE_POSTGRES_DSN": f"postgresql://tidegate:secret-word@{nobody}/shop",
        },
        is_warm=False,
    )


def test_unreachable_postgres_is_named_without_its_password(alone: Cli) -> None:
    """The message ends in logs that many may read."""
    message = _refusal(alone, "run", "--all", code=FAILED)
    assert "postgres at 127.0.0.1:" in message
    assert "TIDEGATE_POSTGRES_DSN" in message
    assert "secret-word" not in message


def test_unreachable_kafka_is_named(alone: Cli) -> None:
    """The address is the first thing to compare with what was meant."""
    assert "TIDEGATE_KAFKA_BOOTSTRAP" in _refusal(alone, "topics", "create", code=FAILED)


@pytest.mark.parametrize(
    "setting, address, command",
    [
        ("TIDEGATE_KAFKA_BOOTSTRAP", "{}", ["topics", "create"]),
        ("TIDEGATE_POSTGRES_DSN", "postgresql://{}/shop", ["status"]),
    ],
)
def test_server_that_hangs_up_is_no_riddle(setting: str, address: str, command: list[str], alone: Cli) -> None:
    """Behind a wrong port there may be anything; what its silence looks like to a client helps nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=_hang_up, args=[listening], daemon=True).start()
        port = f"127.0.0.1:{listening.getsockname()[1]}"
        wrong = Cli({**alone.environment, setting: address.format(port)}, is_warm=False)
        message = _refusal(wrong, *command, code=FAILED)
    # Which of the two it is depends on who is faster.
    assert "closed the connection without a word" in message or "reset by peer" in message
    assert port in message
    assert setting in message


def _hang_up(listening: socket.socket) -> None:
    with suppress(OSError):  # of a listener that was closed
        while True:
            listening.accept()[0].close()


def test_option_that_does_not_exist_is_a_misuse(alone: Cli) -> None:
    """Scripts tell their own mistakes (2) from failures (1) by the exit code."""
    done = alone.run("run", "--nope")
    assert done.returncode == 2
    assert "--nope" in done.stderr


def test_folder_that_shadows_us_is_named(alone: Cli, tmp_path: Path) -> None:
    """Without a word about it, the user's import fails with a module of ours that they never heard of."""
    (tmp_path / "dlq").mkdir()
    (tmp_path / "dlq" / "letters_of_mine.py").write_text("")
    (tmp_path / "shop.py").write_text("import dlq.letters_of_mine\n")
    message = _refusal(Cli(alone.environment, tmp_path, is_warm=False), "run", "--all", "--app", "shop:app")
    assert str(tmp_path / "dlq") in message


# These find servers that are not ready.


def test_refused_credentials_are_named(cli: Cli) -> None:
    """Not to be mistaken for an outage, which would be waited out."""
    dsn = cli.environment["TIDEGATE_POSTGRES_DSN"]
    wrong = f"postgresql://nobody:secret-word@{dsn.rpartition('@')[2]}"
    message = _refusal(cli, "run", "--all", TIDEGATE_POSTGRES_DSN=wrong)
    assert "refused the connection" in message
    assert "secret-word" not in message


def test_another_servers_port_is_told_from_kafkas(cli: Cli) -> None:
    """Two addresses that were swapped are a common mistake; nobody knows its "1213486160 expected bytes"."""
    other = cli.environment["TIDEGATE_ELASTICSEARCH_URL"].removeprefix("http://")
    message = _refusal(cli, "topics", "create", code=FAILED, TIDEGATE_KAFKA_BOOTSTRAP=other)
    assert f"kafka at {other}" in message
    assert "does not speak Kafka's protocol" in message


def test_worker_walks_its_user_from_migrate_to_topics_to_the_port(cli: Cli) -> None:
    """Each start names the next missing thing and the command that makes it."""
    assert "run 'tidegate migrate'" in _refusal(cli, "run", "--all")
    assert "run 'tidegate migrate'" in _refusal(cli, "status")
    assert cli.run("migrate").returncode == 0
    assert "run 'tidegate topics create'" in _refusal(cli, "run", "--all")
    prefix = cli.environment["SMALL_PREFIX"]
    data = '{"payment": "p", "cents": 1}'
    unsent = _refusal(cli, "send", f"{prefix}.payments", "--type", "payment.made", "--json", data)
    assert "run 'tidegate topics create'" in unsent
    assert cli.run("topics", "create").returncode == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is in use" in _refusal(cli, "run", "--all", "--port", port)
    backfill = ("run", "ledger", "--backfill", "--from-checkpoint", "nightly")
    assert "set TIDEGATE_TOKEN" in cli.run(*backfill, TIDEGATE_LOG_LEVEL="error").stderr
    token = cli.run("tokens", "create", "tests", "--bootstrap").stdout.strip()
    unknown = _refusal(cli, *backfill, TIDEGATE_LOG_LEVEL="error", TIDEGATE_TOKEN=token)
    assert "no checkpoint 'nightly'" in unknown
