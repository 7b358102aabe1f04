"""A stop ends inside the grace period whatever hangs: a server that does not answer, a handler that blocks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# `busy`: the event loop is held before anybody asks. `block`: it is held after that. `await`: a connection that never
# answers its rollback.
_SCRIPT = """
import asyncio, sys, time
from datetime import timedelta
from tidegate.commands import signals
from tidegate_kernel.logs import configure_logs

async def work(stop):
    print("ready", flush=True)
    if sys.argv[1] == "busy":
        time.sleep(3600)
    await stop.wait()
    print("asked", flush=True)
    if sys.argv[1] == "block":
        time.sleep(3600)
    await asyncio.sleep(3600)

configure_logs(style="json", level="info")
signals._CLOSING = timedelta(seconds=0.3)
signals.run_until_signal(work, drain=timedelta(seconds=0.2), late_code=int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("way", ["await", "block", "busy"])
def test_a_stop_that_hangs_is_cut_short(way: str, code: int) -> None:
    """G10: else the platform kills the process at the end of its patience, and a deployment waits for that each time.
    What was not settled is read again, so a worker that is cut short has ended well."""
    command = [sys.executable, "-c", _SCRIPT, way, str(code)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert way == "busy" or process.stdout.readline() == "asked\n"
            assert process.wait(timeout=30) == code
        finally:
            process.kill()
