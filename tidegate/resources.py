"""What all jobs of a process share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from consumers.caution import Solitude
from tidegate_kernel.clock import Clock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections, Pool
from tidegate_kernel.settings import Settings


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
