"""Secure without being asked: the *restricted* Pod Security Standard, no token, no right, no secret in a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.rendering import EXAMPLES, Object, containers, example, objects, only, pods, variables

_SETS = [path.stem for path in EXAMPLES]
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def _unrestricted(name: str, pod: Object) -> Iterator[str]:
    """What the standard forbids, as its own page lists it."""
    whole = pod["securityContext"]
    if pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC"):
        yield f"{name}: a namespace of the host"
    yield from (f"{name}: volume {v['name']}" for v in pod.get("volumes", ()) if not set(v) - {"name"} <= _VOLUMES)
    for each in containers(pod):
        own = each.get("securityContext", {})
        settled: dict[str, Any] = {**whole, **own}
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}/{each['name']}: privileges may grow"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            yield f"{name}/{each['name']}: capabilities"
        if settled.get("runAsNonRoot") is not True or settled.get("runAsUser") == 0:
            yield f"{name}/{each['name']}: may be root"
        if settled.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}/{each['name']}: no seccomp profile"
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{name}/{each['name']}: may write to its image"


@pytest.mark.parametrize("values", _SETS)
def test_every_pod_is_restricted(values: str) -> None:
    """Hooks and Jobs are pods, too: a namespace that enforces the standard would refuse the migration first."""
    found = list(pods(example(values)))
    assert len(found) >= 4
    assert [problem for name, pod in found for problem in _unrestricted(name, pod)] == []


@pytest.mark.parametrize("values", _SETS)
def test_no_pod_has_a_token_of_the_cluster(values: str) -> None:
    """A worker never speaks to Kubernetes; whoever breaks into one should not either."""
    found = example(values)
    assert [name for name, pod in pods(found) if pod.get("automountServiceAccountToken") is not False] == []
    assert only(found, "ServiceAccount")["automountServiceAccountToken"] is False
    assert [each["kind"] for each in found if "Role" in each["kind"]] == []


@pytest.mark.parametrize("values", _SETS)
def test_no_secret_is_in_a_manifest(values: str) -> None:
    """Manifests end in repositories, in Helm's own storage and in terminals."""
    found = example(values)
    assert [each["metadata"]["name"] for each in found if each["kind"] == "Secret"] == []
    for _, pod in pods(found):
        for each in containers(pod):
            said = variables(each)
            secret = [name for name in said if name.endswith(("_DSN", "_PASSWORD", "_TOKEN", "_API_KEY"))]
            assert all("secretKeyRef" in said[name] for name in secret), (secret, said)


def test_every_pod_of_the_csi_example_is_let_into_the_vault() -> None:
    """A migration that is not would be the first thing of an install to hang."""
    found = [each for each in example("csi") if each["kind"] in ("Deployment", "Job", "Pod")]
    labels = [each["metadata"] if each["kind"] == "Pod" else each["spec"]["template"]["metadata"] for each in found]
    assert len(labels) == 4
    assert all(each["labels"]["azure.workload.identity/use"] == "true" for each in labels)


def test_secret_outlives_the_hook_that_brings_it() -> None:
    """Helm makes a hook anew at each upgrade: with an owner the Secret would go with it, under pods that just start."""
    brought = only(example("external-secrets"), "ExternalSecret")
    assert "helm.sh/hook" in brought["metadata"]["annotations"]
    assert brought["spec"]["target"]["creationPolicy"] == "Orphan"


def test_names_of_services_do_not_come_as_settings() -> None:
    """A Service called `tidegate` would otherwise be TIDEGATE_PORT=tcp://… in every pod of the namespace."""
    assert [name for name, pod in pods(objects()) if pod.get("enableServiceLinks") is not False] == []


def test_pods_are_reached_by_the_port_of_probes_alone() -> None:
    """/metrics and probes ask for no password: who may reach them is a matter of the network."""
    policy = only(example("shop"), "NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 9464, "protocol": "TCP"}]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    assert policy["policyTypes"] == ["Ingress"]


def test_egress_that_is_named_leaves_names_resolvable() -> None:
    """Without DNS a policy of addresses cuts off everything."""
    policy = only(example("static-members"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    # Long answers come by TCP.
    assert policy["egress"][0] == {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.20.0.0/16"}}]
