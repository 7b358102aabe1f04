"""A demo as its users start it, on the servers of the tests, and what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.stack.names import ServerName, StackAddresses

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a run of the demo left."""

    exit_code: int
    printed: str
    report: Mapping[str, Any]


def environment_of(stack: StackAddresses) -> dict[str, str]:
    """What says where the servers are, and all that this process was told."""
    names = {name.setting.removeprefix("TIDEGATE_").lower(): name.setting for name in ServerName}
    return {**os.environ, **{names[field]: address for field, address in asdict(stack).items()}}


def run_demo(module: str, stack: StackAddresses, report: Path, *, orders: int, **settings: str) -> Outcome:
    """Returns when the demo has ended; it writes its report to `report`."""
    environment = {**environment_of(stack), "DEMO_ORDERS": str(orders), "DEMO_JSON": str(report), **settings}
    command = [sys.executable, "-m", module]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert report.exists(), ended.stderr
    return Outcome(ended.returncode, ended.stdout, json.loads(report.read_text()))
