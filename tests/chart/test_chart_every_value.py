"""Every value of the chart does something: said anew, it arrives where it should and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest

from scripts import chart_doc
from tests.chart.rendering import Object, objects

_WORKER, _PODS = "Deployment", "Deployment Job Pod"
_HOOK, _TASK = "Job/migrate-", "Job/backfill- Job/replay-"


class Said(NamedTuple):
    """One value: what is said, in what it is found (kinds, or `Kind/part of the name`), and how it looks there."""

    path: str
    value: Any
    found: str
    seen: str = ""

    @property
    def mark(self) -> str:
        """What nothing else in the chart says."""
        return self.seen or next(_marks(self.value))


def _marks(value: Any) -> Iterator[str]:
    match value:
        case Mapping():
            for key, each in value.items():
                yield from _marks(key)
                yield from _marks(each)
        case list():
            for each in value:
                yield from _marks(each)
        case str() if "mark-" in value:
            yield value
        case int() if value > 7000:
            yield str(value)


def _place(section: str, kind: str) -> list[Said]:
    return [
        Said(f"{section}.nodeSelector", {f"mark-{section}-node": "x"}, kind),
        Said(f"{section}.tolerations", [{"key": f"mark-{section}-taint", "operator": "Exists"}], kind),
        Said(f"{section}.affinity", {"nodeAffinity": {f"mark-{section}-affinity": "x"}}, kind),
        Said(f"{section}.priorityClassName", f"mark-{section}-priority", kind),
        Said(f"{section}.podLabels", {f"mark-{section}-label": "x"}, kind),
        Said(f"{section}.podAnnotations", {f"mark-{section}-annotation": "x"}, kind),
    ]


def _resources(section: str, kind: str, number: int) -> Said:
    return Said(f"{section}.resources", {"limits": {"memory": f"{number}Mi"}}, kind, f"{number}Mi")


def _probe(name: str, number: int) -> list[Said]:
    keys = ("failureThreshold", "periodSeconds", "timeoutSeconds")
    return [Said(f"probes.{name}.{key}", number + place, _WORKER) for place, key in enumerate(keys)]


def _container(path: str, found: str) -> Said:
    return Said(path, [{"name": f"mark-{path.lower().replace('.', '-')}", "image": "i"}], found)


_ALL = [
    Said("nameOverride", "mark-chart", "ConfigMap Deployment Job NetworkPolicy Pod PodDisruptionBudget PrometheusRule "
         "Service ServiceAccount ServiceMonitor"),
    Said("fullnameOverride", "mark-full", "ConfigMap Deployment Job NetworkPolicy Pod PodDisruptionBudget "
         "PrometheusRule Service ServiceMonitor"),
    Said("image.repository", "mark-repository", _PODS),
    Said("image.tag", "mark-tag", _PODS),
    Said("image.pullPolicy", "Always", _PODS, '"imagePullPolicy": "Always"'),
    Said("image.pullSecrets", ["mark-pull"], _PODS),
    # Hooks come before the ConfigMap; what reads it has a checksum of it, which is another test's.
    Said("app", "mark_app:app", "ConfigMap/settings Job/migrate-", "mark_app:app"),
    Said("settings", {"TIDEGATE_KAFKA_CLIENT_ID": "mark-client", "TIDEGATE_KAFKA_REBALANCE_TIMEOUT": 600},
         "ConfigMap/settings Job/migrate-"),
    Said("http.host", "::", "ConfigMap/settings Job/migrate-", '"::"'),
    Said("drainTimeoutSeconds", 571, "ConfigMap/settings Job/migrate-", "571"),
    Said("secrets.env", {"TIDEGATE_TOKEN_FILE": {"name": "mark-secret", "key": "k", "optional": True}}, _PODS),
    Said("secrets.files", {"secret": {"secretName": "mark-files"}}, _PODS),
    Said("secrets.revision", "mark-revision", _WORKER),
    Said("worker.replicas", 7011, _WORKER),
    Said("worker.lanes", 63, "Deployment Pod", '"--lanes", "63"'),
    _resources("worker", _WORKER, 7012),
    Said("worker.rollingUpdate", {"maxSurge": 7013}, _WORKER),
    Said("worker.podDisruptionBudget.maxUnavailable", 7014, "PodDisruptionBudget"),
    Said("worker.topologySpreadConstraints", [{"topologyKey": "mark-topology"}], _WORKER),
    *_place("worker", "Deployment Pod"),
    Said("worker.env", [{"name": "mark-variable", "value": "x"}], "Deployment Pod"),
    _container("worker.sidecars", _WORKER),
    _container("worker.initContainers", _WORKER),
    Said("migrations.topicReplication", 7021, "Job/migrate-pre"),
    Said("migrations.workerRoles", ["mark-worker-role"], _HOOK),
    Said("migrations.commandRoles", ["mark-command-role"], _HOOK),
    Said("migrations.secretEnv", {"TIDEGATE_POSTGRES_DSN": {"name": "mark-owner", "key": "k"}}, _HOOK),
    Said("migrations.serviceAccountName", "mark-migrator", _HOOK),
    Said("migrations.backoffLimit", 7022, _HOOK),
    Said("migrations.activeDeadlineSeconds", 7023, _HOOK),
    _resources("migrations", f"{_HOOK} Pod", 7024),
    *_place("migrations", _HOOK),
    Said("tasks.tokenSecret", {"name": "mark-token", "key": "k"}, _TASK),
    Said("tasks.secretEnv", {"TIDEGATE_POSTGRES_DSN": {"name": "mark-dsn", "key": "k"}}, _TASK),
    Said("tasks.backoffLimit", 7031, _TASK),
    Said("tasks.activeDeadlineSeconds", 7032, _TASK),
    Said("tasks.ttlSecondsAfterFinished", 7033, _TASK),
    _resources("tasks", _TASK, 7034),
    *_place("tasks", _TASK),
    Said("backfills", {"a": {"job": "mark-backfill", "fromBeginning": True}}, "Job/backfill-"),
    Said("replays", {"a": {"job": "mark-replay", "reason": "r"}}, "Job/replay-"),
    _container("extraInitContainers", _PODS),
    Said("extraEnv", [{"name": "mark-extra-env", "value": "x"}], _PODS),
    Said("extraEnvFrom", [{"configMapRef": {"name": "mark-env-from"}}], _PODS),
    Said("extraVolumes", [{"name": "mark-volume", "emptyDir": {}}], _PODS),
    Said("extraVolumeMounts", [{"name": "x", "mountPath": "/mark-mount"}], _PODS),
    Said("serviceAccount.name", "mark-account", "Deployment Job/backfill- Job/replay- Pod ServiceAccount"),
    Said("serviceAccount.annotations", {"mark-annotation": "x"}, "ServiceAccount"),
    Said("podSecurityContext", {"fsGroup": 7041}, _PODS),
    Said("securityContext", {"runAsUser": 7042}, _PODS),
    Said("networkPolicy.from", [{"podSelector": {"matchLabels": {"mark-from": "x"}}}], "NetworkPolicy"),
    Said("networkPolicy.egress", [{"to": [{"ipBlock": {"cidr": "mark-egress"}}]}], "NetworkPolicy"),
    Said("http.port", 7051, "ConfigMap/settings Deployment Job/migrate- NetworkPolicy Service"),
    *_probe("startup", 7061),
    *_probe("liveness", 7071),
    *_probe("readiness", 7081),
    Said("metrics.serviceMonitor.labels", {"mark-monitor": "x"}, "ServiceMonitor"),
    Said("metrics.serviceMonitor.interval", "17s", "ServiceMonitor", "17s"),
    Said("metrics.dashboard.labels", {"mark-dashboard": "x"}, "ConfigMap/dashboard"),
    Said("metrics.dashboard.annotations", {"mark-folder": "x"}, "ConfigMap/dashboard"),
    Said("metrics.rules.labels", {"mark-rules": "x"}, "PrometheusRule"),
    Said("metrics.rules.runbookUrl", "mark-runbook", "PrometheusRule"),
    Said("metrics.rules.alertLabels", {"mark_alert": "x"}, "PrometheusRule", "mark_alert"),
    Said("metrics.rules.secondsBehind", 7091, "PrometheusRule"),
    Said("metrics.rules.deadLetterRatio", 0.7092, "PrometheusRule", "0.7092"),
    Said("metrics.rules.deadLettersAnHour", 7093, "PrometheusRule"),
    Said("metrics.rules.deadLetterDays", 0.5, "PrometheusRule", "43200"),
    Said("metrics.rules.freshnessBurn", 70.95, "PrometheusRule", "70.95"),
    Said("extraObjects", [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mark-object"}}], "Secret"),
]  # fmt: skip

_SCALED = [
    Said("worker.autoscaling.minReplicas", 7101, "ScaledObject"),
    Said("worker.autoscaling.maxReplicas", 7102, "ScaledObject"),
    Said("worker.autoscaling.secondsBehind", 7103, "ScaledObject"),
    Said("worker.autoscaling.scaleDownAfterSeconds", 711, "ScaledObject", '"stabilizationWindowSeconds": 711'),
    Said("metrics.prometheusUrl", "http://mark-prometheus", "ScaledObject"),
    Said("metrics.prometheusAuthentication", "mark-authentication", "ScaledObject"),
    Said("image.digest", f"sha256:{'7' * 64}", _PODS, "7" * 64),
    Said("scheduler.jobs", ["mark-clock"], "Deployment/scheduler Pod/scheduler"),
    Said("scheduler.replicas", 7112, "Deployment/scheduler"),
    Said("workloads", {"search": {"jobs": ["mark-search"]}}, "Deployment/search Pod/search ScaledObject"),
]
_BY_CPU = [
    Said("worker.autoscaling.cpuPercent", 71, "HorizontalPodAutoscaler", '"averageUtilization": 71'),
]
# What decides whether there is something: said with what else it needs, it brings these or takes them away.
_SWITCHES: Mapping[str, tuple[Mapping[str, Any], set[str]]] = {
    "worker.staticMembership": ({"worker": {"staticMembership": True}}, {"Deployment", "StatefulSet"}),
    "worker.autoscaling.kind": (
        {"worker": {"partitions": 6, "autoscaling": {"kind": "hpa"}}}, {"HorizontalPodAutoscaler"},
    ),
    "worker.podDisruptionBudget.enabled": (
        {"worker": {"podDisruptionBudget": {"enabled": False}}}, {"PodDisruptionBudget"},
    ),
    "migrations.enabled": ({"migrations": {"enabled": False}}, {"Job"}),
    "serviceAccount.create": ({"serviceAccount": {"create": False}}, {"ServiceAccount"}),
    "networkPolicy.enabled": ({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}),
    "metrics.serviceMonitor.enabled": ({"metrics": {"serviceMonitor": {"enabled": True}}}, {"ServiceMonitor"}),
    "metrics.rules.enabled": ({"metrics": {"rules": {"enabled": True}}}, {"PrometheusRule"}),
    "metrics.dashboard.enabled": ({"metrics": {"dashboard": {"enabled": True}}}, set()),
    "scheduler.enabled": ({"workloads": {"a": {"jobs": ["a"]}}, "scheduler": {"enabled": True, "jobs": ["b"]}}, set()),
    "migrations.post": ({"migrations": {"post": False}}, set()),
    "migrations.createTopics": ({"migrations": {"createTopics": True}}, set()),
}  # fmt: skip
# Compared with replicas, and refused: test_chart_values.py.
_ONLY_CHECKED = {"worker.partitions"}

_BASES: Mapping[str, tuple[list[Said], Mapping[str, Any]]] = {
    "all": (_ALL, {
        "migrations": {"createTopics": True},
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "rules", "dashboard")},
    }),
    "keda": (_SCALED, {
        "worker": {"partitions": 7200, "autoscaling": {"kind": "keda"}}, "scheduler": {"enabled": True},
    }),
    "hpa": (_BY_CPU, {"worker": {"partitions": 8, "autoscaling": {"kind": "hpa"}}}),
}  # fmt: skip


def _merged(base: Mapping[str, Any], said: list[Said]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(base))
    for each in said:
        *sections, key = each.path.split(".")
        inside = values
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[key] = each.value
    return values


@cache
def _rendered(name: str) -> Mapping[str, str]:
    """Every object as text, by kind and name."""
    said, base = _BASES[name]
    return {_called(each): json.dumps(each) for each in objects(**_merged(base, said))}


@cache
def _default() -> Sequence[Object]:
    return objects()


def _called(found: Object) -> str:
    return f"{found['kind']}/{found['metadata']['name']}"


@pytest.mark.parametrize("name, said", [(name, each) for name, (said, _) in _BASES.items() for each in said],
                         ids=lambda each: getattr(each, "path", None))  # fmt: skip
def test_value_arrives_where_it_should_and_nowhere_else(name: str, said: Said) -> None:
    """One that arrives nowhere looks as if it did something; one that arrives elsewhere does more than was said."""
    rendered = _rendered(name)
    holding = {called for called, text in rendered.items() if re.search(rf"{re.escape(said.mark)}(?!\d)", text)}

    for where in said.found.split():
        kind, _, part = where.partition("/")
        expected = {called for called in rendered if called.startswith(f"{kind}/") and part in called}
        assert expected, f"nothing is a {where}"
        assert expected <= holding, f"{said.path} does not reach {expected - holding}"
        holding -= expected
    assert holding == set(), f"{said.path} reaches more than {said.found}"


@pytest.mark.parametrize("path", _SWITCHES)
def test_switch_brings_or_takes_what_it_says(path: str) -> None:
    """And nothing else comes or goes with it."""
    values, changes = _SWITCHES[path]
    before, after = _default(), objects(**values)
    assert {each["kind"] for each in before} ^ {each["kind"] for each in after} == changes
    assert before != after


def test_every_value_is_said_here() -> None:
    """A new value comes with its line."""
    said = {each.path for group, _ in _BASES.values() for each in group}
    told = {each.path for each in chart_doc.values(chart_doc.VALUES.read_text(encoding="utf-8"))}
    assert told == said | _SWITCHES.keys() | _ONLY_CHECKED


def test_no_two_marks_are_mistaken_for_each_other() -> None:
    """Else one value would stand for another that is lost."""
    marks = [each.mark for group, _ in _BASES.values() for each in group]
    assert len(marks) == len(set(marks))
    inside = [
        (one, other)
        for one in marks
        for other in marks
        if one != other and re.search(rf"{re.escape(one)}(?!\d)", other)
    ]
    assert inside == []
