"""Processes that play the pods of a workload, and what Kubernetes does to them when their template changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import httpx

from tests.chaos.process import Child, Command, free_ports
from tests.rollout.chart import Workload

# The readiness probe of a pod that starts, but at once and not every five seconds: what is measured is ours.
_LOOK_SECONDS = 0.1
_READY_SECONDS = 120.0


@dataclass
class Pod:
    name: str
    port: int
    child: Child

    async def until_ready(self, client: httpx.AsyncClient) -> None:
        """Raises TimeoutError, or RuntimeError if its process has ended."""
        async with asyncio.timeout(_READY_SECONDS):
            while not await self._is_ready(client):
                if not self.child.is_alive:
                    raise RuntimeError(f"{self.name} has ended: see {self.child.command.log_file}")
                await asyncio.sleep(_LOOK_SECONDS)

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False


class Pods:
    """All pods of a workload. `ends`: exit codes of those that have ended."""

    def __init__(self, workload: Workload, environment: Mapping[str, str], app: Path, logs: Path) -> None:
        self._workload, self._environment, self._app, self._logs = workload, environment, app, logs
        self._client = httpx.AsyncClient(trust_env=False, timeout=5)
        self._numbers = 0
        self.pods: list[Pod] = []
        self.ends: list[int] = []

    async def start_all(self) -> None:
        """As many as the workload has replicas are ready."""
        names = [self._name(number) for number in range(self._workload.replicas)]
        self.pods = [await self._start(name) for name in names]
        await asyncio.gather(*(pod.until_ready(self._client) for pod in self.pods))

    async def roll(self) -> None:
        """Every pod has been replaced, as the workload's controller would do it."""
        await (self._roll_in_place() if self._workload.is_static else self._roll_with_surge())

    async def end(self) -> None:
        """None is left."""
        await asyncio.gather(*(self._end(pod) for pod in self.pods))
        await self._client.aclose()

    async def _roll_in_place(self) -> None:
        """A StatefulSet: the last one first, each gone before its successor starts, which has its name."""
        for index in reversed(range(len(self.pods))):
            await self._end(self.pods[index])
            self.pods[index] = await self._start(self.pods[index].name)
            await self.pods[index].until_ready(self._client)

    async def _roll_with_surge(self) -> None:
        """A Deployment: as many new ones at once as the surge allows, old ones go as far as enough are available."""
        workload, old, new = self._workload, list(self.pods), list[Pod]()
        starting, ending = dict[asyncio.Task[None], Pod](), set[asyncio.Task[None]]()
        while old or starting:
            while len(new) < min(workload.replicas, workload.replicas + workload.surge - len(old)):
                new.append(await self._start(self._name(len(new))))
                starting[asyncio.create_task(new[-1].until_ready(self._client))] = new[-1]
            ready = len(old) + len(new) - len(starting)
            for pod in old[: max(0, ready - (workload.replicas - workload.unavailable))]:
                old.remove(pod)
                ending.add(asyncio.create_task(self._end(pod)))
            if starting and len(new) == min(workload.replicas, workload.replicas + workload.surge - len(old)):
                done, _ = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del starting[task]
                    task.result()
        await asyncio.gather(*ending)
        self.pods = new

    def _name(self, number: int) -> str:
        self._numbers += 1
        return f"worker-{number}" if self._workload.is_static else f"worker-{self._numbers:03d}"

    async def _start(self, name: str) -> Pod:
        (port,) = free_ports(1)
        own = {"TIDEGATE_HTTP_HOST": "127.0.0.1", "TIDEGATE_HTTP_PORT": str(port)}
        if self._workload.is_static:
            own["TIDEGATE_KAFKA_INSTANCE_ID"] = name
        environment = {**self._workload.environment, **self._environment, **own}
        arguments = [sys.executable, "-m", "tidegate", *self._workload.arguments]
        log_file = self._logs / f"{name}.log"
        child = Child(Command(arguments, self._app, log_file, environment=environment))
        await child.start()
        return Pod(name, port, child)

    async def _end(self, pod: Pod) -> None:
        self.ends.append(await pod.child.end(SIGTERM, grace_seconds=self._workload.grace_seconds))
