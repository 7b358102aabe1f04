"""The chart through the real Helm, and what it is read with. Without them the tests are skipped by name."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
TOOLS = ROOT / ".state" / "chart"
NAMESPACE, RELEASE = "shop", "shop"

Object = Mapping[str, Any]
"""One Kubernetes object."""


def program(name: str) -> str:
    """The path of a program that scripts/chart-tools fetched; skips the test without it."""
    found = TOOLS / "bin" / name
    if not found.exists():
        pytest.skip(f"scripts/chart-tools could not fetch {name}")
    return str(found)


def library(name: str) -> Any:
    """A module that scripts/chart-tools fetched; skips the test without it."""
    folder = TOOLS / "python"
    if not folder.exists():
        pytest.skip("scripts/chart-tools could not fetch the schemas of Kubernetes")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: what .venv has is used from there
    return importlib.import_module(name)


def helm(*arguments: str, stdin: str | None = None, kubeconfig: str = "") -> subprocess.CompletedProcess[str]:
    """What Helm says, without what a user of this machine has configured, nor any cluster that is not named."""
    environment = {"HOME": str(ROOT / ".state" / "helm"), "PATH": os.environ["PATH"], "KUBECONFIG": kubeconfig}
    command = [program("helm"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=240
    )


def template(*arguments: str, values: object = None) -> subprocess.CompletedProcess[str]:
    """The chart with `values`, or why it is refused."""
    given = ["-f", "-"] if values is not None else []
    said = None if values is None else json.dumps(values)
    return helm("template", RELEASE, "helm", "-n", NAMESPACE, *given, *arguments, stdin=said)


@cache
def example(name: str) -> Sequence[Object]:
    """The objects of one of helm/examples."""
    done = template("-f", f"helm/examples/{name}.yaml")
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def objects(**values: object) -> Sequence[Object]:
    """The objects of the chart with these values."""
    done = template(values=values)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def refusal(values: object) -> str:
    """Why the chart refuses these values. Fails if it does not."""
    done = template(values=values)
    assert done.returncode != 0, f"{values} was taken"
    return done.stderr


def parsed(text: str) -> Sequence[Object]:
    yaml = library("yaml")
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def only(found: Sequence[Object], kind: str, name: str = "") -> Object:
    """The one object of a kind whose name ends so."""
    matching = [each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    assert len(matching) == 1, f"{len(matching)} of {kind} {name!r}"
    return matching[0]


def pods(found: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """The specification of every pod, by kind and name of what makes it."""
    for each in found:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each["spec"]
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]["spec"]


def containers(pod: Object) -> Sequence[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def own_containers(pod: Object) -> Sequence[Object]:
    """Those that run Tidegate; sidecars are the user's."""
    return [each for each in containers(pod) if each.get("args")]


def variables(container: Object) -> Mapping[str, Any]:
    """The environment: values, or where they come from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", ())}
