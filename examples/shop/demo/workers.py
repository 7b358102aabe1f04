"""Worker processes: the real command line, as an operator or a cluster starts it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from examples.shop.demo.place import Place, TrialFailed

TIDEGATE = Path(sys.executable).with_name("tidegate")
# A second or two by itself; two cores may have a dozen other things to do.
_READY_SECONDS = 120.0
_STOP_SECONDS = 40.0

Samples = Mapping[tuple[str, str, str], float]
"""(sample's name, job, the one other label: reason or bucket) to its value."""


@dataclass
class Worker:
    """A running `tidegate run --all`. `samples` is its last scrape."""

    name: str
    process: Process
    port: int
    log: Path
    samples: Samples = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """What stands on the positions it owns, and in the application name of its connections."""
        return f"{socket.gethostname()}:{self.process.pid}"

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Raises TrialFailed if the process has ended."""
        self._require_running()
        self.process.send_signal(number)

    async def scrape(self, http: aiohttp.ClientSession) -> None:
        """`samples` are those of now; of a worker that does not answer they stay."""
        try:
            async with http.get(f"http://127.0.0.1:{self.port}/metrics", timeout=aiohttp.ClientTimeout(2)) as answer:
                self.samples = _samples(await answer.text())
        except (aiohttp.ClientError, TimeoutError):
            return

    async def is_ready(self, http: aiohttp.ClientSession) -> bool:
        """Whether its readiness probe says yes. Raises TrialFailed if the process has ended."""
        self._require_running()
        try:
            async with http.get(f"http://127.0.0.1:{self.port}/readyz", timeout=aiohttp.ClientTimeout(2)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def stop(self) -> int:
        """Asks it to end, as a cluster does; returns its exit code."""
        if self.is_running:
            self.signal(signal.SIGTERM)
        async with asyncio.timeout(_STOP_SECONDS):
            return await self.process.wait()

    def _require_running(self) -> None:
        if not self.is_running:
            raise TrialFailed(
                f"{self.name} ended with {self.process.returncode}; the end of {self.log}:\n{self.tail()}"
            )

    def tail(self, lines: int = 5) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


async def tidegate(place: Place, *arguments: str) -> str:
    """Runs a command to its end and returns what it printed. Raises TrialFailed unless it succeeds."""
    process = await asyncio.create_subprocess_exec(
        TIDEGATE, *arguments, env=place.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, errors = await process.communicate()
    if process.returncode != 0:
        raise TrialFailed(f"'tidegate {' '.join(arguments)}' ended with {process.returncode}:\n{errors.decode()}")
    return printed.decode()


async def start_worker(place: Place, name: str) -> Worker:
    """The process runs; whether it is ready is another question."""
    port, log = _free_port(), place.folder / f"{name}.log"
    environment = {**place.environment, "TIDEGATE_HTTP_PORT": str(port)}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            TIDEGATE, "run", "--all", env=environment, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
    return Worker(name, process, port, log)


async def until_ready(workers: Sequence[Worker], http: aiohttp.ClientSession) -> None:
    """Every worker serves. Raises TrialFailed with the end of its log."""
    for worker in workers:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await worker.is_ready(http):  # noqa: ASYNC110  # another process: nothing to wait on but asking
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise TrialFailed(f"{worker.name} is not ready; the end of {worker.log}:\n{worker.tail()}") from None


def _samples(text: str) -> Samples:
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "partition" not in sample.labels:
                other = sample.labels.get("reason") or sample.labels.get("le") or sample.labels.get("outcome") or ""
                found[sample.name, sample.labels.get("job", ""), other] = sample.value
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
