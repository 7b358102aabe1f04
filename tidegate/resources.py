"""What all jobs of a process share."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from consumers.caution import Solitude
from tidegate.app import App
from tidegate_kernel.clock import Clock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections, Pool, open_pool
from tidegate_kernel.settings import Settings

# For libraries called through ctx.thread: more would only queue at the database.
_THREADS = 16
# Beside a connection a lane: takeovers with their watcher, the relay, upkeep of tables and sinks, freshness, probes.
_SPARE_CONNECTIONS = 6


@dataclass(frozen=True, slots=True)
class Resources:
    """What all jobs of a process share. `owner` names this process on the positions it takes."""

    settings: Settings
    pool: Pool
    clock: Clock
    metrics: Metrics
    threads: ThreadPoolExecutor
    owner: str
    deps: Any = None
    connections: Connections = field(default_factory=Connections)
    solitude: Solitude = field(default_factory=Solitude)


@asynccontextmanager
async def open_resources(
    app: App, settings: Settings, *, jobs: int, clock: Clock, more: int = 0
) -> AsyncIterator[Resources]:
    """Yields what `jobs` jobs of this process share, with the App's lifespan entered. `more`: connections beside."""
    dsn = settings.postgres_dsn.get_secret_value()
    owner = f"{socket.gethostname()}:{os.getpid()}"
    size = jobs * settings.lanes + _SPARE_CONNECTIONS + more
    async with AsyncExitStack() as opened:
        connections = Connections()
        name = f"tidegate {owner}"[:63]
        pool = await opened.enter_async_context(
            open_pool(dsn, size=size, application_name=name, connections=connections)
        )
        threads = opened.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="handler"))
        deps = await opened.enter_async_context(app.lifespan()) if app.lifespan is not None else None
        yield Resources(settings, pool, clock, Metrics(), threads, owner, deps, connections)
