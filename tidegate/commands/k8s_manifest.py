"""A Job of Kubernetes that does one task once, as the chart's own: the same pod, but by hand and without Helm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tidegate.commands.k8s_release import Release
from tidegate.commands.k8s_words import TaskKind
from tidegate_kernel.errors import Misconfigured

# Kubernetes makes labels and names of pods of it.
_LONGEST_NAME = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How often it is tried, how long it may take and stay, and what it may use; as `tasks` of the chart's values."""

    backoff_limit: int
    ttl_seconds: int
    deadline_seconds: int | None
    resources: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """`arguments` of `tidegate`. `name` tells apart what is to be done twice in the same words."""

    kind: TaskKind
    arguments: Sequence[str]
    name: str = ""


def job(release: Release, task: Task, course: Course) -> Mapping[str, Any]:
    """Returns the manifest. Typed twice it has the same name, so that Kubernetes refuses the second."""
    labels = {**release.labels, "app.kubernetes.io/component": str(task.kind)}
    meta: dict[str, Any] = {"name": _name(release, task)}
    if release.namespace:
        meta["namespace"] = release.namespace
    deadline = {} if course.deadline_seconds is None else {"activeDeadlineSeconds": course.deadline_seconds}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "labels": {**labels, "app.kubernetes.io/managed-by": "tidegate"}},
        "spec": {
            "backoffLimit": course.backoff_limit,
            **deadline,
            "ttlSecondsAfterFinished": course.ttl_seconds,
            "podFailurePolicy": _FAILURES,
            "template": {"metadata": _pod_meta(release, labels), "spec": _pod(release, task, course)},
        },
    }


# A wrong word (2) or a refusal (3) is not better for being tried again; an eviction is no failure.
_FAILURES: Mapping[str, Any] = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3]}},
    ]
}


def _pod_meta(release: Release, labels: Mapping[str, str]) -> Mapping[str, Any]:
    told = {"annotations": release.pod_annotations} if release.pod_annotations else {}
    return {"labels": {**release.pod_labels, **labels}, **told}


def _pod(release: Release, task: Task, course: Course) -> Mapping[str, Any]:
    container = {
        "name": str(task.kind),
        **release.container,
        "args": [escaped(word) for word in task.arguments],
        "resources": course.resources,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": release.grace_seconds,
        **release.pod,
        # Whatever the workload has: it speaks to no cluster, and names of Services are no settings.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }


def escaped(word: str) -> str:
    """`word` as the kubelet will hand it on: it would put a variable, perhaps the token, for `$(TIDEGATE_TOKEN)`."""
    return word.replace("$", "$$")


def _name(release: Release, task: Task) -> str:
    # Never the name of a Job of the chart: Helm could not take it over, and the next upgrade would fail.
    said = json.dumps(["by hand", *task.arguments])
    digest = sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    name = "-".join(filter(None, (release.fullname, task.kind, task.name, digest)))
    if len(name) > _LONGEST_NAME:
        raise Misconfigured(
            f"the name {name!r} has {len(name)} characters and may have {_LONGEST_NAME}; shorten --task"
        )
    return name
