"""`tidegate` as people type it, in the folder of the small service."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
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
    """Runs commands with the given environment and no other `TIDEGATE_…` variable.

    What is started is a fresh `python -m tidegate`. So is what is run, unless `is_warm`: then it is the fork of an
    interpreter that has everything imported, a process of its own at a tenth of the price.
    """

    environment: Mapping[str, str]
    folder: Path = APPS
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    is_warm: bool = True

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return self.start_python("-m", "tidegate", *arguments, **extra)

    def start_python(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._whole_environment(extra),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, stdin: str = "", **extra: str) -> Ended:
        if self.is_warm:
            return self._fork({"": None}, arguments, stdin=stdin, **extra)[""]
        process = self.start(*arguments, **extra)
        out, err = process.communicate(stdin, timeout=_DEADLINE_SECONDS)
        return Ended(arguments, process.returncode, out, err)

    def run_as(self, tokens: Mapping[str, str | None], *arguments: str) -> Mapping[str, Ended]:
        """The command of each bearer, by name, all at once: processes of their own that share their imports."""
        return self._fork(tokens, arguments)

    def _fork(
        self, tokens: Mapping[str, str | None], arguments: tuple[str, ...], *, stdin: str = "", **extra: str
    ) -> Mapping[str, Ended]:
        environment = self._whole_environment(extra)
        assert environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH"), "other modules need a fresh interpreter"
        asked = {
            "arguments": arguments,
            "environment": environment,
            "folder": str(self.folder),
            "stdin": stdin,
            "tokens": tokens,
        }
        return {name: Ended(arguments, *ended) for name, ended in _WARM.answer(asked).items()}

    def _whole_environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
        return {**inherited, **self.environment, **extra}

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


class Warm:
    """An interpreter that forks commands; started when it is first asked, ended with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        atexit.register(self.end)

    def answer(self, asked: Mapping[str, Any]) -> Mapping[str, tuple[int, str, str]]:
        """What came of it, by name. Whatever goes wrong, an answer that is not waited for is not given to another."""
        with self._turn:
            try:
                process = self._process = self._process or self._start()
                assert process.stdin is not None
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.flush()
                answered: Mapping[str, tuple[int, str, str]] = json.loads(self._line(process))
            except BaseException:
                self.end()
                raise
        return answered

    def end(self) -> None:
        """It is gone, and what it has forked with it."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(_FORKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    @staticmethod
    def _line(process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        read, give_up_at = b"", time.monotonic() + _DEADLINE_SECONDS
        while not read.endswith(b"\n"):
            left = give_up_at - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(process.args, _DEADLINE_SECONDS)
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, "the interpreter that forks commands has ended: its stderr says why"
            read += piece
        return read


_WARM = Warm()


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
