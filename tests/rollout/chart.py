"""What the chart says of a workload, as far as a roll of its pods is concerned: rendered by Helm, not copied."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = ROOT / ".state" / "chart"
_INSTANCE_ID = "TIDEGATE_KAFKA_INSTANCE_ID"


class NoHelm(Exception):
    """There is nothing to render the chart with."""


@dataclass(frozen=True)
class Workload:
    """A Deployment with its surge, or a StatefulSet, whose pods keep their names (`is_static`)."""

    is_static: bool
    replicas: int
    surge: int
    unavailable: int
    grace_seconds: float
    arguments: Sequence[str]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        if self.is_static:
            return f"StatefulSet of {self.replicas}, static membership"
        return f"Deployment of {self.replicas}, surge {self.surge}, unavailable {self.unavailable}"


def read_workload(*values: str) -> Workload:
    """Returns the chart's only workload under `values` (`worker.replicas=2`). Raises NoHelm."""
    objects = _rendered(values)
    (found,) = (each for each in objects if each["kind"] in ("Deployment", "StatefulSet"))
    spec, pod = found["spec"], found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    is_static = found["kind"] == "StatefulSet"
    names = [variable["name"] for variable in container.get("env", ())]
    assert (_INSTANCE_ID in names) == is_static, "a pod that keeps its name is a static member, and no other one"
    update = {"maxSurge": 0, "maxUnavailable": 1} if is_static else spec["strategy"]["rollingUpdate"]
    return Workload(
        is_static=is_static,
        replicas=spec["replicas"],
        surge=update["maxSurge"],
        unavailable=update["maxUnavailable"],
        grace_seconds=pod["terminationGracePeriodSeconds"],
        arguments=container["args"],
        environment=_settings(objects, container),
    )


def _rendered(values: Sequence[str]) -> list[dict[str, Any]]:
    helm = _TOOLS / "bin" / "helm"
    if not helm.exists():
        raise NoHelm("scripts/chart-tools could not fetch Helm: there is nothing to render the chart with")
    sets = [word for value in values for word in ("--set", value)]
    command = [str(helm), "template", "rolled", str(ROOT / "helm"), *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sys.path.append(str(_TOOLS / "python"))
    yaml = importlib.import_module("yaml")
    return [each for each in yaml.safe_load_all(text) if each]


def _settings(objects: Sequence[Mapping[str, Any]], container: Mapping[str, Any]) -> dict[str, str]:
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    settings = dict[str, str]()
    for source in container.get("envFrom", ()):
        settings |= maps[source["configMapRef"]["name"]]
    return settings
