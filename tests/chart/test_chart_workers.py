"""What the chart promises of workers: who runs what, how they stop, roll, scale and spread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.rendering import example, helm, objects, only, pods, variables
from tidegate.commands.signals import _CLOSING
from tidegate.version import __version__


def test_without_workloads_one_runs_all_jobs() -> None:
    """The first install needs no list of jobs."""
    worker = only(objects(), "Deployment")
    assert worker["metadata"]["name"] == "shop-tidegate-worker"
    assert worker["spec"]["template"]["spec"]["containers"][0]["args"] == ["run", "--all"]


def test_own_workloads_stand_for_the_default_one() -> None:
    """If the default stayed beside them, every job would run twice."""
    names = {each["metadata"]["name"] for each in example("shop") if each["kind"] == "Deployment"}
    assert names == {"shop-tidegate-ledger", "shop-tidegate-search", "shop-tidegate-revenue"}


def test_workload_says_anew_what_it_wants_otherwise() -> None:
    """Also a zero and a false, which merges of templates like to lose."""
    said = {"jobs": ["one"], "replicas": 0, "podDisruptionBudget": {"enabled": False}}
    found = objects(workloads={"search": said})
    assert only(found, "Deployment")["spec"]["replicas"] == 0
    assert [each for each in found if each["kind"] == "PodDisruptionBudget"] == []


def test_lanes_are_of_the_workload() -> None:
    """A slow sink wants more of them; a process-wide setting would give them to all."""
    found = example("shop")
    search, ledger = (only(found, "Deployment", name)["spec"]["template"]["spec"] for name in ("search", "ledger"))
    assert search["containers"][0]["args"] == ["run", "order-search", "--lanes", "4"]
    assert ledger["containers"][0]["args"] == ["run", "customer-ledger", "customer-value"]


def test_pods_are_killed_after_the_worker_has_ended_by_itself() -> None:
    """Killed earlier, a batch in hand would be redelivered, and its partitions wait for the session to expire."""
    for seconds in (20, 40):
        pod = only(objects(drainTimeoutSeconds=seconds), "Deployment")["spec"]["template"]["spec"]
        config = only(objects(drainTimeoutSeconds=seconds), "ConfigMap", "settings")["data"]
        assert config["TIDEGATE_DRAIN_TIMEOUT"] == str(seconds)
        assert pod["terminationGracePeriodSeconds"] >= seconds + _CLOSING.total_seconds() + 1


def test_changed_setting_restarts_pods() -> None:
    """A ConfigMap that changes alone leaves pods with the old values until something else restarts them."""

    def checksum(**values: object) -> str:
        template = only(objects(**values), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum() != checksum(settings={"TIDEGATE_LETTER_BACKLOG": 5000})
    assert checksum() == checksum(worker={"replicas": 3})


def test_changed_secret_restarts_pods_when_it_is_said() -> None:
    """The chart cannot see into a Secret."""
    annotations = only(objects(secrets={"revision": "two"}), "Deployment")["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert annotations["tidegate.dev/secrets-revision"] == "two"


def test_settings_arrive_as_they_are_written() -> None:
    """Templates like to write 83886080 as 8.388608e+07, and half a second as none."""
    said = {
        "TIDEGATE_KAFKA_FETCH_MAX_BYTES": 83886080,
        "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL": 0.5,
        "TIDEGATE_KAFKA_SSL_CHECK_HOSTNAME": False,
        "TIDEGATE_LETTER_RETENTION": "90d",
    }
    config = only(objects(settings=said), "ConfigMap", "settings")["data"]
    assert [config[name] for name in said] == ["83886080", "0.5", "false", "90d"]


def test_static_members_are_named_as_their_pods() -> None:
    """Two members of one name fence each other out; one whose name changes leaves a ghost that holds its partitions."""
    members = only(example("static-members"), "StatefulSet")["spec"]
    given = variables(members["template"]["spec"]["containers"][0])
    assert given["TIDEGATE_KAFKA_INSTANCE_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert members["serviceName"] == only(example("static-members"), "Service")["metadata"]["name"]
    assert members["podManagementPolicy"] == "Parallel"


def test_pods_with_changing_names_are_no_static_members() -> None:
    """A Deployment's pod that ends would hold its partitions until the session expires."""
    for name in ("ledger", "search", "revenue"):
        pod = only(example("shop"), "Deployment", name)["spec"]["template"]["spec"]
        assert "TIDEGATE_KAFKA_INSTANCE_ID" not in variables(pod["containers"][0])


def test_autoscaler_alone_decides_how_many() -> None:
    """A number in the manifest would throw a scaled workload back at each upgrade."""
    found = example("shop")
    assert "replicas" not in only(found, "Deployment", "search")["spec"]
    assert only(found, "Deployment", "ledger")["spec"]["replicas"] == 2
    assert "replicas" not in only(example("static-members"), "StatefulSet")["spec"]


def test_scaling_asks_for_seconds_behind_of_these_jobs() -> None:
    """Records say nothing: a thousand may be a second or a day."""
    scaled = only(example("shop"), "ScaledObject")["spec"]
    (trigger,) = scaled["triggers"]
    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop-tidegate-search"}
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 12)
    assert trigger["metadata"]["query"].count('job=~"order-search"') == 4
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "30")
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_pods_come_quickly_and_go_slowly() -> None:
    """Each change moves partitions, which rest meanwhile; a workload that is behind waits for nobody."""
    by_keda = only(example("shop"), "ScaledObject")["spec"]
    by_cpu = only(example("static-members"), "HorizontalPodAutoscaler")["spec"]["behavior"]
    config = by_keda["advanced"]["horizontalPodAutoscalerConfig"]
    assert config["behavior"] == by_cpu
    assert config["name"] == by_keda["scaleTargetRef"]["name"]
    assert by_cpu["scaleUp"] == {
        "stabilizationWindowSeconds": 30,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
    }
    assert by_cpu["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    assert by_keda["pollingInterval"] <= 15


def test_every_object_says_whose_it_is() -> None:
    """What no label tells cannot be listed, and is left behind."""
    for values in ("shop", "static-members", "tasks"):
        for each in example(values):
            labels = each["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "shop", each["metadata"]["name"]
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["helm.sh/chart"] == f"tidegate-{__version__}"
            if each["kind"] in ("Deployment", "StatefulSet", "ScaledObject", "HorizontalPodAutoscaler"):
                assert each["metadata"]["name"].endswith(labels["app.kubernetes.io/component"])


@pytest.mark.parametrize(
    "said, done",
    [
        ({"replicas": 2}, {"maxSurge": 1, "maxUnavailable": 1}),
        ({"replicas": 1}, {"maxSurge": 1, "maxUnavailable": 0}),
        ({"replicas": 1, "rollingUpdate": {"maxSurge": 0}}, {"maxSurge": 0, "maxUnavailable": 1}),
    ],
)
def test_only_pod_stays_until_the_next_is_ready(said: dict[str, Any], done: dict[str, int]) -> None:
    """An image that cannot be pulled would otherwise leave nobody at work; who forbids a second pod has said so."""
    assert only(objects(worker=said), "Deployment")["spec"]["strategy"]["rollingUpdate"] == done


def test_cpu_is_the_alternative() -> None:
    """Where no KEDA runs; and it scales what the pods are made by."""
    scaled = only(example("static-members"), "HorizontalPodAutoscaler")["spec"]
    assert scaled["scaleTargetRef"]["kind"] == "StatefulSet"
    (measured,) = (each["containerResource"] for each in scaled["metrics"])
    # A sidecar that requests no CPU leaves the sum over the pod undefined: with `Resource` this example never scaled.
    assert measured == {
        "container": "worker",
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 65},
    }
    assert scaled["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_scheduler_is_a_workload_of_its_own() -> None:
    """A roll of consumers is to cut off no run by the clock."""
    scheduler = only(example("static-members"), "Deployment", "scheduler")["spec"]
    assert scheduler["template"]["spec"]["containers"][0]["args"] == ["run", "revenue-by-day"]
    assert scheduler["replicas"] == 2


def test_scheduler_has_nothing_of_what_partitions_need() -> None:
    """Runs belong to whoever has their lease: two pods are right for one partition, too, and none is scaled by lag."""
    scaling = {"kind": "keda", "minReplicas": 1, "maxReplicas": 1}
    found = objects(
        worker={"partitions": 1, "lanes": 3, "staticMembership": True, "autoscaling": scaling},
        workloads={"a": {"jobs": ["one"]}},
        scheduler={"enabled": True, "jobs": ["two"], "resources": {"limits": {"memory": "2Gi"}}},
        metrics={"prometheusUrl": "http://prometheus:9090"},
    )
    scheduler = only(found, "Deployment", "scheduler")["spec"]
    container = scheduler["template"]["spec"]["containers"][0]
    assert (scheduler["replicas"], container["args"]) == (2, ["run", "two"])
    assert container["resources"]["limits"]["memory"] == "2Gi"
    assert only(found, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "shop-tidegate-a"
    assert only(found, "StatefulSet")["metadata"]["name"] == "shop-tidegate-a"


def test_selectors_tell_workloads_apart_and_match_their_pods() -> None:
    """A budget or a spread that counts another workload's pods protects nobody."""
    found = example("shop")
    for each in found:
        if each["kind"] in ("Deployment", "StatefulSet"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            selector = each["spec"]["selector"]["matchLabels"]
            assert selector.items() <= labels.items()
            assert selector["app.kubernetes.io/component"] in each["metadata"]["name"]
            for spread in each["spec"]["template"]["spec"]["topologySpreadConstraints"]:
                assert spread["labelSelector"]["matchLabels"] == selector
    budgets = [each for each in found if each["kind"] == "PodDisruptionBudget"]
    assert {each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for each in budgets} == {
        "ledger",
        "search",
    }


def test_probes_ask_what_the_worker_answers() -> None:
    """Readiness holds rolls up, liveness restarts: the wrong way round an outage would restart all workers."""
    container = only(objects(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert container["ports"] == [{"name": "http", "containerPort": 9464}]


def test_one_pod_may_be_missing_while_a_deployment_rolls() -> None:
    """A partition that is blocked keeps its pod unready: were none to be missing, its mend could not be rolled out."""
    assert only(objects(), "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 1}


def test_metrics_keep_the_label_job() -> None:
    """Prometheus calls what it scrapes `job`, too: ours would become `exported_job`, and every alert silent."""
    monitor = only(example("shop"), "ServiceMonitor")["spec"]
    service = only(example("shop"), "Service")
    assert monitor["endpoints"][0]["honorLabels"] is True
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["endpoints"][0]["path"] == "/metrics"
    # Another release of this name, in another namespace, has a monitor of its own.
    assert monitor["namespaceSelector"] == {"matchNames": ["shop"]}
    assert monitor["podTargetLabels"] == ["app.kubernetes.io/component"]


def test_own_containers_and_volumes_come_along() -> None:
    """What the chart did not think of must not need a fork."""
    found = dict(pods(example("static-members")))
    assert len(found) == 6
    for pod in found.values():  # a migration and a check have to log in and trust as a worker does
        assert [each["name"] for each in pod["initContainers"]] == ["login"]
        assert {each["name"] for each in pod["volumes"]} == {"tmp", "certificates", "login"}
        mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"/certificates", "/login", "/tmp"}


def test_containers_of_a_workload_are_its_own() -> None:
    """What one workload needs beside it is nothing to the others."""
    beside, before = {"name": "beside", "image": "i"}, {"name": "before", "image": "i"}
    own = {"jobs": ["one"], "sidecars": [beside], "initContainers": [before]}
    found = dict(pods(objects(workloads={"a": own, "b": {"jobs": ["two"]}})))
    worker = found["Deployment shop-tidegate-a"]
    assert [each["name"] for each in (*worker["initContainers"], *worker["containers"])] == [
        "before",
        "worker",
        "beside",
    ]
    others = [pod for name, pod in found.items() if name != "Deployment shop-tidegate-a"]
    assert all("initContainers" not in pod and len(pod["containers"]) == 1 for pod in others)


def test_extra_objects_are_templates() -> None:
    """One set of values serves several namespaces."""
    secret = only(example("external-secrets"), "ExternalSecret")
    assert secret["spec"]["dataFrom"] == [{"extract": {"key": "shop/tidegate"}}]


def test_image_by_digest_comes_before_its_tag() -> None:
    """A tag may be moved; what a roll back relies on may not."""
    digest = "sha256:" + "a" * 64

    def image(**values: object) -> str:
        return str(only(objects(image=values), "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"])

    assert image(repository="r/shop", tag="4.2", digest=digest) == f"r/shop@{digest}"
    assert image(repository="r/shop", tag="4.2") == "r/shop:4.2"
    assert image(repository="r/shop") == f"r/shop:{__version__}"


def test_account_of_somebody_else_is_used_as_it_is() -> None:
    """Where accounts are another team's, the chart makes none."""
    found = objects(serviceAccount={"create": False, "name": "theirs"})
    assert [each for each in found if each["kind"] == "ServiceAccount"] == []
    assert only(found, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


def test_names_follow_what_was_said() -> None:
    """Two releases in one namespace have no object in common."""
    names = {each["metadata"]["name"] for each in objects(fullnameOverride="till")}
    assert all(name == "till" or name.startswith("till-") for name in names)
    long = helm("template", "a-release-whose-name-is-far-too-long-for-it", "helm")
    assert long.returncode != 0
    assert "set fullnameOverride to something shorter" in long.stderr


def test_notes_tell_the_next_commands() -> None:
    """What they name exists: a pod to look into, and what is missing."""
    done = helm("install", "shop", "helm", "-n", "shop", "--dry-run=client", "-f", "helm/examples/static-members.yaml")
    notes = done.stdout.partition("NOTES:")[2]
    assert done.returncode == 0, done.stderr
    assert "kubectl -n shop exec statefulset/shop-tidegate-consumers -- tidegate status" in notes
    assert "shop-tidegate-scheduler: revenue-by-day" in notes
    assert "helm test shop -n shop" in notes
    assert "No alert watches this release" in notes
    bare = helm("install", "shop", "helm", "-n", "shop", "--dry-run=client").stdout
    assert "Set secrets.env.TIDEGATE_POSTGRES_DSN" in bare
