"""SIGTERM and Ctrl-C: the first ends in order; only a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Says when it can be signalled, then when it was; the lingering stands for a handler.
_SCRIPT = """
import asyncio, sys
from tidegate.commands.signals import run_until_signal
from tidegate_kernel.logs import configure_logs

async def work(stop):
    print("ready", flush=True)
    await stop.wait()
    print("asked", flush=True)
    await asyncio.sleep({"finish": 0, "finish-later": 1, "linger": 3600}[sys.argv[1]])

configure_logs(style="json", level="info")
run_until_signal(work)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_work_in_hand_finish(number: signal.Signals) -> None:
    """G10: what is in hand at a deployment is settled, not done twice."""
    with _started("finish") as process:
        _expect(process, "ready")
        process.send_signal(number)
        _expect(process, "asked")
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_second_interrupt_ends_at_once(first: signal.Signals) -> None:
    """Whoever presses Ctrl-C twice does not want to wait for a drain time-out; nothing is lost, it is read again."""
    with _started("linger") as process:
        _expect(process, "ready")
        process.send_signal(first)
        _expect(process, "asked")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 128 + signal.SIGINT


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_second_term_changes_nothing(first: signal.Signals) -> None:
    """Case 122: a platform that repeats itself must not turn an orderly end into a kill."""
    with _started("finish-later") as process:
        _expect(process, "ready")
        process.send_signal(first)
        _expect(process, "asked")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


# Comes to the place where imports begin, and no further.
_EARLY = """
import sys, time
from tidegate import commands

class Late:
    def find_spec(self, name, *_):
        if name == "tidegate.commands.face":
            print("importing", flush=True)
            time.sleep(3600)

sys.meta_path.insert(0, Late())
commands.main()
"""


@contextmanager
def _started_early(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command line, still importing what it needs."""
    command = [sys.executable, "-c", _EARLY, *arguments]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            _expect(process, "importing")
            yield process
        finally:
            process.kill()


@contextmanager
def _started(way: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _SCRIPT, way]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


def test_term_before_anything_has_begun_is_an_orderly_end() -> None:
    """A platform that scales down may meet a process that still imports: a code of 143 would look like a crash."""
    with _started_early("run", "--all") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_backfill_that_has_not_begun_is_not_called_done() -> None:
    """The Job of a cluster that ends with 0 is never run again."""
    with _started_early("run", "search", "--backfill", "--from-beginning") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
