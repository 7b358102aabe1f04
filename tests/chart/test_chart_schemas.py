"""Every object of every set of values is one that each supported Kubernetes takes, to the last key."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import EXAMPLES, example, objects, only
from tests.chart.schemas import VERSIONS, problems, without_foreign


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str) -> None:
    """A key that Kubernetes does not know is dropped without a word, and so is what it was meant to do."""
    rendered = [objects(), *(example(path.stem) for path in EXAMPLES)]

    wrong = [problem for found in rendered for each in without_foreign(found) for problem in problems(each, version)]

    assert wrong == []


@pytest.mark.parametrize(
    "kind, place",
    [
        ("Deployment", ["spec", "template", "spec", "containers", 0, "livenessProbe"]),
        ("PodDisruptionBudget", ["spec"]),
        ("NetworkPolicy", ["spec", "ingress", 0]),
        ("ScaledObject", ["spec", "triggers", 0]),
        ("ScaledObject", ["spec", "advanced", "horizontalPodAutoscalerConfig"]),
        ("ServiceMonitor", ["spec", "endpoints", 0]),
        ("PrometheusRule", ["spec", "groups", 0, "rules", 0]),
    ],
)
def test_unknown_key_is_noticed(kind: str, place: list[Any]) -> None:
    """A schema that takes everything would make the test above worthless."""
    found = deepcopy(next(each for each in example("shop") if each["kind"] == kind))
    assert problems(found, VERSIONS[-1]) == []
    inside: Any = found
    for step in place:
        inside = inside[step]

    inside["misspelt"] = 1

    assert len(problems(found, VERSIONS[-1])) == 1


def test_wrong_type_is_noticed() -> None:
    """As above, for values: KEDA takes thresholds as text alone."""
    found = deepcopy(only(example("shop"), "ScaledObject"))
    found["spec"]["triggers"][0]["metadata"]["threshold"] = 30
    assert [problem for problem in problems(found, VERSIONS[-1]) if "threshold" in problem]


def test_examples_are_found() -> None:
    """An empty list of sets would pass everything."""
    assert {path.stem for path in EXAMPLES} >= {"minimal", "shop", "static-members", "external-secrets", "csi", "tasks"}
    assert all(isinstance(path, Path) for path in EXAMPLES)
