"""What a pod of a release is given: said in words, or read off a workload that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.commands.k8s_settings import is_secret
from tidegate_kernel.errors import Misconfigured

CHART = "tidegate"
_INSTANCE, _COMPONENT, _NAME = (f"app.kubernetes.io/{word}" for word in ("instance", "component", "name"))
# As in values.yaml; a test compares what comes of both.
_POD_SECURITY: Mapping[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
_TMP = {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}
_TMP_MOUNT = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 a mount inside the pod, of its own
_SETTINGS = "/run/secrets"
# Of the pod: what a Job needs of it to be let in, to be placed and to reach what it needs. Probes, ports, spread and
# budgets are a worker's.
_OF_POD = ("serviceAccountName", "imagePullSecrets", "securityContext", "initContainers", "volumes")
_OF_PLACE = ("nodeSelector", "tolerations")
_OF_CONTAINER = ("image", "imagePullPolicy", "envFrom", "env", "securityContext", "volumeMounts")
_OWN = ("app.kubernetes.io/", "helm.sh/", "tidegate.dev/", "checksum/", "kubectl.kubernetes.io/", "pod-template-hash")
# Named as its pod, a Job would be a member of a group that it does not join; and a Job's pods have no lasting names.
_NOT_FOR_JOBS = "TIDEGATE_KAFKA_INSTANCE_ID"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret that is there."""

    secret: str
    key: str

    def variable(self, name: str) -> Mapping[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": self.secret, "key": self.key}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`fullname` begins the names of its objects. `pod` and `container` are parts of a pod's specification."""

    fullname: str
    instance: str
    chart: str = CHART
    namespace: str | None = None
    pod: Mapping[str, Any] = field(default_factory=dict)
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    grace_seconds: int = 30

    @property
    def labels(self) -> Mapping[str, str]:
        """What the release's network policy finds its pods by."""
        return {_NAME: self.chart, _INSTANCE: self.instance}

    def with_secrets(self, keys: Mapping[str, SecretKey]) -> Release:
        """The same with these variables, which come before those that it has."""
        kept = [each for each in self.container.get("env", ()) if each["name"] not in keys]
        variables = [key.variable(name) for name, key in sorted(keys.items())]
        return replace(self, container={**self.container, "env": [*variables, *kept]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A release in words, as the chart would make it of its defaults. What is None was not said."""

    release: str | None = None
    name: str | None = None
    namespace: str | None = None
    image: str | None = None
    config_map: str | None = None
    account: str | None = None
    secret_files: str | None = None
    pull_secrets: Sequence[str] = ()
    drain_seconds: int | None = None


def release_in_words(said: Said) -> Release:
    """Returns the release. Raises Misconfigured where its name or its image was not said."""
    if said.release is None or said.image is None:
        raise Misconfigured("say --release and --image, or --like: a workload of the release, as JSON of kubectl")
    fullname = said.name or fullname_of(said.release)
    files = said.secret_files
    settings = {"name": "settings", "secret": {"secretName": files, "defaultMode": 0o440}}
    mount = {"name": "settings", "mountPath": _SETTINGS, "readOnly": True}
    pulls = [{"name": each} for each in said.pull_secrets]
    return Release(
        fullname=fullname,
        instance=said.release,
        namespace=said.namespace,
        pod={
            "serviceAccountName": said.account or fullname,
            **({"imagePullSecrets": pulls} if pulls else {}),
            "securityContext": _POD_SECURITY,
            "volumes": [_TMP, settings] if files else [_TMP],
        },
        container={
            "image": said.image,
            "imagePullPolicy": "IfNotPresent",
            "envFrom": [{"configMapRef": {"name": said.config_map or f"{fullname}-settings"}}],
            "securityContext": _SECURITY,
            "volumeMounts": [_TMP_MOUNT, mount] if files else [_TMP_MOUNT],
        },
        grace_seconds=_grace(20 if said.drain_seconds is None else said.drain_seconds),
    )


def fullname_of(release: str) -> str:
    """As the chart names objects: 'shop' is 'shop-tidegate', 'my-tidegate' is 'my-tidegate'."""
    return release if CHART in release else f"{release}-{CHART}"


def _grace(drain_seconds: int) -> int:
    return drain_seconds + 10  # 8 s that the program takes at most beyond its drain, 2 s for the kubelet


def release_of_workload(text: str, said: Said) -> Release:
    """Returns the release of a Deployment or StatefulSet of the chart, in JSON; what was `said` comes before it.

    Raises Misconfigured for anything else, and where a secret stands in it in plain text.
    """
    found = _workload(text)
    meta, pod = found["metadata"], found["spec"]["template"]["spec"]
    labels = meta["labels"]
    _refuse_wordy(said)
    container = _worker(pod)
    taken = {key: container[key] for key in _OF_CONTAINER if container.get(key)}
    taken["env"] = list(_variables(taken.get("env", ())))
    grace = pod.get("terminationGracePeriodSeconds", 30)
    return Release(
        fullname=said.name or meta["name"].removesuffix(f"-{labels[_COMPONENT]}"),
        instance=labels[_INSTANCE],
        chart=labels.get(_NAME, CHART),
        namespace=said.namespace or meta.get("namespace"),
        pod={key: pod[key] for key in (*_OF_POD, *_OF_PLACE) if pod.get(key)},
        pod_labels=_others(found, "labels"),
        pod_annotations=_others(found, "annotations"),
        container={**taken, **({"image": said.image} if said.image else {})},
        grace_seconds=grace if said.drain_seconds is None else _grace(said.drain_seconds),
    )


def _workload(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    is_workload = isinstance(found, dict) and found.get("kind") in ("Deployment", "StatefulSet")
    if not is_workload:
        raise Misconfigured("--like takes one workload as JSON: 'kubectl get deployment shop-tidegate-worker -o json'")
    labels = found["metadata"].get("labels") or {}
    if not {_INSTANCE, _COMPONENT} <= labels.keys():
        name = found["metadata"].get("name")
        raise Misconfigured(f"--like: {found['kind']} {name!r} is none of the chart: it has no label {_COMPONENT}")
    return dict(found)


def _refuse_wordy(said: Said) -> None:
    """What a workload tells by itself would be said twice, and which one counts would be a guess."""
    told = {
        "--release": said.release, "--config-map": said.config_map, "--service-account": said.account,
        "--secret-files": said.secret_files, "--pull-secret": said.pull_secrets,
    }  # fmt: skip
    for option, value in told.items():
        if value:
            raise Misconfigured(f"{option} is told by the workload of --like; give one or the other")


def _worker(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [each for each in pod["containers"] if each["name"] == "worker"]
    if len(found) != 1:
        raise Misconfigured("--like: the workload has no container 'worker', as those of the chart have")
    return dict(found[0])


def _others(workload: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """What the pods of a workload have beside what the chart gives them: what injects a proxy goes by it."""
    told = workload["spec"]["template"]["metadata"].get(kind) or {}
    return {name: value for name, value in told.items() if not name.startswith(_OWN)}


def _variables(given: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for each in given:
        if each.get("value") and is_secret(each["name"]):
            raise Misconfigured(
                f"--like: {each['name']} stands in the workload in plain text; a manifest may end anywhere: "
                "put it into a Secret (secrets.env of the chart)"
            )
        if each["name"] != _NOT_FOR_JOBS:
            yield each
