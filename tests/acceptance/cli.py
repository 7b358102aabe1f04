"""`tidegate` as people type it, in the folder of the small service."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Ended = subprocess.CompletedProcess[str]

APPS = Path(__file__).with_name("apps")
_FORKS = Path(__file__).with_name("forks.py")
# Two cores may be busy with a dozen other things.
_DEADLINE_SECONDS = 55


@dataclass
class Cli:
    """Runs commands with the given environment and no other `TIDEGATE_…` variable."""

    environment: Mapping[str, str]
    folder: Path = APPS
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return self._start(["-m", "tidegate", *arguments], extra)

    def _start(self, program: Sequence[str], extra: Mapping[str, str]) -> subprocess.Popen[str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
        process = subprocess.Popen(
            [sys.executable, *program],
            cwd=self.folder,
            env={**inherited, **self.environment, **extra},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **extra)
        out, err = process.communicate(stdin, timeout=_DEADLINE_SECONDS)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run_as(self, tokens: Mapping[str, str | None], *arguments: str) -> Mapping[str, Ended]:
        """The command of each bearer, by name, all at once: processes of their own that share their imports."""
        process = self._start([str(_FORKS)], {})
        out, err = process.communicate(
            json.dumps({"arguments": arguments, "tokens": tokens}), timeout=_DEADLINE_SECONDS
        )
        assert process.returncode == 0, err
        return {name: Ended(arguments, *ended) for name, ended in json.loads(out).items()}

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json; it must succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@dataclass
class Worker:
    """A `tidegate run` that is under way; its log is read as it is written."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    port: int = 0
    _rest: bytes = b""

    def wait_for(self, *texts: str) -> dict[str, Any]:
        """Returns the next log line that holds all of `texts`. Fails after the deadline, or if the worker ends."""
        give_up_at = time.monotonic() + _DEADLINE_SECONDS
        assert self.process.stderr is not None
        descriptor = self.process.stderr.fileno()
        while time.monotonic() < give_up_at:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.lines.append(line.decode())
                if all(text.encode() in line for text in texts):
                    found: dict[str, Any] = json.loads(line)
                    return found
            if select.select([descriptor], [], [], 0.5)[0]:
                read = os.read(descriptor, 65536)
                assert read, f"the worker ended before {texts}:\n" + "\n".join(self.lines)
                self._rest += read
        raise AssertionError(f"no {texts} in time:\n" + "\n".join(self.lines))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=_DEADLINE_SECONDS)
