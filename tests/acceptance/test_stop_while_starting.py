"""A worker that is asked to stop while it still waits for Kafka."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.acceptance.cli import Cli

_SOON_SECONDS = 5.0


@pytest.fixture
def silent_kafka() -> Iterator[socket.socket]:
    """Takes connections and never says a word, as behind a firewall that forgot them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        yield listening


def test_a_worker_that_waits_for_a_silent_kafka_ends_well_when_it_is_asked_to(
    ready_cli: Cli, silent_kafka: socket.socket
) -> None:
    """Case 122, G10: a deployment that is taken back while Kafka is away must not look failed, nor wait for Kafka."""
    port = silent_kafka.getsockname()[1]
    process = ready_cli.start("run", "ledger", TIDEGATE_KAFKA_BOOTSTRAP=f"127.0.0.1:{port}")
    connection, _ = silent_kafka.accept()
    with connection:
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - asked < _SOON_SECONDS


def test_a_worker_that_cannot_reach_kafka_still_says_so(ready_cli: Cli) -> None:
    """Whoever asks for nothing gets the reason, and the code of a failure: the same words do it when Kafka is back."""
    done = ready_cli.run("run", "ledger", TIDEGATE_KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
