"""The chart on a real API server: what it takes, and what a release goes through from install to uninstall."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.acceptance.cli import Cli
from tests.chart.cluster import PATIENCE, Cluster, running_cluster
from tests.chart.rendering import EXAMPLES, example
from tests.chart.schemas import without_foreign

pytestmark = pytest.mark.timeout(400)

_SHOP = ("-f", "helm/examples/shop.yaml")
_PRE, _POST = "shop-tidegate-migrate-pre", "shop-tidegate-migrate-post"
_NEW_IMAGE = ("--set", "image.digest=", "--set", "image.tag=4.3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests; each has a namespace of its own."""
    with running_cluster(tmp_path_factory.mktemp("kube")) as running:
        yield running


def test_server_takes_every_set_of_values(cluster: Cluster) -> None:
    """Schemas know keys and types; the server knows names, ports, selectors and quantities as well."""
    cluster.namespace("shop")
    for account in ("shop-tidegate", "shop-migrations"):
        cluster.must("create", "serviceaccount", account, "-n", "shop")
    for values in EXAMPLES:
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*without_foreign(example(values.stem))]})
        done = cluster.kubectl("apply", "-n", "shop", "--dry-run=server", "--validate=strict", "-f", "-", stdin=objects)
        assert done.returncode == 0, f"{values.stem}: {done.stderr}"
        # A Deployment whose pods the standard would refuse is taken, with a warning.
        assert "would violate PodSecurity" not in done.stderr, f"{values.stem}: {done.stderr}"


def test_server_refuses_what_is_wrong(cluster: Cluster) -> None:
    """A server that took everything would prove nothing."""
    scaled = next(each for each in example("shop") if each["kind"] == "ScaledObject")
    misspelt = json.dumps({**scaled, "spec": {**scaled["spec"], "maxReplicas": 3}})
    done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=misspelt)
    assert done.returncode != 0
    assert 'unknown field "spec.maxReplicas"' in done.stderr


@dataclass(frozen=True)
class Release:
    """One that was installed and upgraded: what happened in either, and the images after each."""

    place: str
    installed: Sequence[str]
    upgraded: Sequence[str]
    before: set[str]
    after: set[str]


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Release:
    """Made once: each step costs seconds."""
    place = cluster.namespace("release")
    cluster.install(place, *_SHOP)
    installed, before = _told(cluster, place, times=1), _images(cluster, place)
    cluster.upgrade(place, *_SHOP, *_NEW_IMAGE)
    upgraded = _told(cluster, place, times=2)[len(installed) :]
    return Release(place, installed, upgraded, before, _images(cluster, place))


def _told(cluster: Cluster, place: str, *, times: int) -> Sequence[str]:
    """What happened, once it was told that the last migration ended `times` times: events come a little later."""
    deadline = time.monotonic() + 120
    while (happened := cluster.happened(place)).count(f"{_POST}: Completed") < times:
        assert time.monotonic() < deadline, happened
        time.sleep(0.2)
    return happened


def test_upgrade_migrates_rolls_and_migrates(release: Release) -> None:
    """New code needs its tables before it starts; what old code needs may go after it has left, not before."""
    for happened in (release.installed, release.upgraded):
        rolled = [place for place, what in enumerate(happened) if what.endswith(": ScalingReplicaSet")]
        assert happened.index(f"{_PRE}: SuccessfulCreate") < rolled[0]
        assert rolled[-1] < happened.index(f"{_POST}: SuccessfulCreate")
        assert f"{_PRE}: Completed" in happened
        workloads = {happened[place].partition(":")[0].rpartition("-")[2] for place in rolled}
        assert workloads == {"ledger", "search", "revenue"}
    assert release.after == {"registry.example.com/shop:4.3"}


def test_rollback_brings_the_old_code_and_leaves_the_schema(cluster: Cluster, release: Release) -> None:
    """At night it has to be one command that asks nothing."""
    seen = len(cluster.happened(release.place))

    cluster.helm("rollback", "shop", "1", "-n", release.place, "--wait", "--timeout", PATIENCE)

    assert _images(cluster, release.place) == release.before
    assert not [each for each in cluster.happened(release.place)[seen:] if "migrate" in each]


def test_check_of_the_release_runs_for_every_workload(cluster: Cluster) -> None:
    """`helm test` is what a pipeline asks after an upgrade."""
    place = cluster.namespace("checked")
    cluster.install(place, "-f", "helm/examples/static-members.yaml")

    told = cluster.helm("test", "shop", "-n", place, "--timeout", PATIENCE)

    assert told.count("Phase:          Succeeded") == 2, told


def test_tasks_run_once_whatever_is_upgraded(cluster: Cluster) -> None:
    """A backfill that began anew with each release would be one that never ends."""
    place = cluster.namespace("tasks")
    tasks = ("-f", "helm/examples/tasks.yaml", "--wait-for-jobs")
    cluster.install(place, *tasks)
    first = _jobs(cluster, place)

    cluster.upgrade(place, *tasks, "--set", "image.tag=4.3", "--set", "worker.replicas=1")
    second = _jobs(cluster, place)
    cluster.upgrade(place, *tasks, "--set", "backfills.repair.fromCheckpoint=weekly")
    third = _jobs(cluster, place)

    assert len(first) == 6
    assert all(complete for _, complete in first.values()), first
    assert second == first
    assert len(third.items() - second.items()) == 1
    assert len(third) == 6
    # The manifest of an upgrade, taken from the live Job, has to be one that makes it anew.
    cluster.must("delete", "jobs", "-n", place, "-l", "app.kubernetes.io/component=backfill")
    cluster.helm("rollback", "shop", "2", "-n", place, "--wait", "--timeout", PATIENCE)
    assert _jobs(cluster, place).keys() == first.keys()


_BACKFILL = ("backfill", "order-search", "--from-checkpoint", "nightly")
_REPLAY = ("replay", "--job", "customer-ledger", "--reason", "mended in 4.2", "--yes")


def test_tasks_by_hand_run_beside_a_release(cluster: Cluster, release: Release) -> None:
    """Without Helm and without its values: all that a Job needs is read off a workload that runs."""
    worker = cluster.must("get", "deployment", "shop-tidegate-search", "-n", release.place, "-o", "json")
    create = ("create", "--validate=strict", "-f", "-", "-o", "name")
    made = []
    for kind, *words in (_BACKFILL, _REPLAY):
        typed = ["k8s", "job", kind, "--like", "-", "--token-secret", "tidegate-operator/token", *words]
        manifest = Cli({}).run(*typed, stdin=worker)
        assert manifest.returncode == 0, manifest.stderr
        made.append(cluster.must(*create, stdin=manifest.stdout).strip())
        assert "AlreadyExists" in cluster.kubectl(*create, stdin=manifest.stdout).stderr

    cluster.must("wait", "--for=condition=Complete", "-n", release.place, *made, "--timeout", PATIENCE)
    # The release does not know them: they are in the way of no upgrade, and none ends them.
    cluster.upgrade(release.place, *_SHOP, *_NEW_IMAGE)
    assert set(made) <= set(cluster.must("get", "jobs", "-n", release.place, "-o", "name").split())


def test_task_by_hand_of_words_alone_is_taken(cluster: Cluster) -> None:
    """Where nothing runs yet, or nobody may read it. By `apply`, too, in a namespace of the *restricted* standard."""
    place = cluster.namespace("by-hand")
    cluster.must("create", "serviceaccount", "shop-tidegate", "-n", place)
    words = ["--release", "shop", "-n", place, "--image", "r/shop:4.2", "--token-secret", "tidegate-operator/token"]
    manifest = Cli({}).run("k8s", "job", "backfill", *words, "order-search", "--from-beginning")
    assert manifest.returncode == 0, manifest.stderr
    told = cluster.kubectl("apply", "--validate=strict", "-f", "-", "-o", "name", stdin=manifest.stdout)
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    cluster.must("wait", "--for=condition=Complete", "-n", place, told.stdout.strip(), "--timeout", PATIENCE)


_MINIMAL = ("-f", "helm/examples/minimal.yaml")
# Its pod finds no node: the Job ends by its deadline.
_FAILING = ("nodeSelector.pool=none", "activeDeadlineSeconds=2")


def _set(section: str, *values: str) -> list[str]:
    return [word for value in values for word in ("--set", f"{section}.{value}")]


def test_upgrade_whose_migration_fails_changes_nothing(cluster: Cluster) -> None:
    """Old pods go on, on their settings; the next try is the same command, and what is left is the log."""
    place = cluster.namespace("unmigrated")
    cluster.install(place, *_MINIMAL)
    before = _standing(cluster, place)

    new = ("--set", "image.tag=4.3", "--set", "settings.TIDEGATE_LANES=3")
    refused = cluster.refused("upgrade", "shop", "helm", "-n", place, *_MINIMAL, *new, *_set("migrations", *_FAILING))

    assert "Job/unmigrated/shop-tidegate-migrate-pre not ready" in refused
    assert _standing(cluster, place) == before
    cluster.upgrade(place, *_MINIMAL, *new)
    assert _images(cluster, place) == {"registry.example.com/shop:4.3"}
    assert not cluster.listed("jobs", place)


def test_pods_that_were_scaled_by_hand_are_rolled_back(cluster: Cluster) -> None:
    """More pods are the first thing that anybody tries at night, a roll back the second: it has to work."""
    place = cluster.namespace("scaled")
    cluster.install(place, *_MINIMAL)
    cluster.upgrade(place, *_MINIMAL, "--set", "image.tag=4.3")
    cluster.must("scale", "deployment/shop-tidegate-worker", "-n", place, "--replicas", "3")
    rollback = ("rollback", "shop", "1", "-n", place, "--wait", "--timeout", PATIENCE)

    assert "conflict" in cluster.refused(*rollback)
    cluster.helm(*rollback, "--force-conflicts")

    assert _images(cluster, place) == {"registry.example.com/shop:4.2"}
    assert _replicas(cluster, place) == 2


def test_pods_stay_when_an_autoscaler_takes_over(cluster: Cluster) -> None:
    """A number that leaves the values is 1 to Kubernetes: a busy workload would fall to one pod."""
    place = cluster.namespace("autoscaled")
    cluster.install(place, *_MINIMAL)
    scaling = _set("worker", "autoscaling.kind=hpa", "partitions=8")

    cluster.must("scale", "deployment/shop-tidegate-worker", "-n", place, "--replicas", "3")
    cluster.upgrade(place, *_MINIMAL, *scaling)
    assert _replicas(cluster, place) == 3

    cluster.upgrade(place, *_MINIMAL, "--force-conflicts")
    assert _replicas(cluster, place) == 2


def test_copy_of_a_pod_is_a_shell_that_nothing_selects(cluster: Cluster, release: Release) -> None:
    """Commands are typed somewhere while all workers are away; a copy that a Deployment counts would be ended."""
    pod = next(
        each for each in cluster.listed("pods", release.place) if "tidegate.dev/part" in each["metadata"]["labels"]
    )
    copy = ("--copy-to=shell", "--container=worker", "--profile=restricted", "--", "sleep", "1d")
    cluster.must("debug", pod["metadata"]["name"], "-n", release.place, *copy)

    (shell,) = (each for each in cluster.listed("pods", release.place) if each["metadata"]["name"] == "shell")
    cluster.must("delete", "pod", "shell", "-n", release.place, "--now")

    worker, copied = pod["spec"]["containers"][0], shell["spec"]["containers"][0]
    assert (copied["command"], copied.get("args")) == (["sleep", "1d"], None)
    assert [copied[key] for key in ("image", "env", "envFrom")] == [worker[key] for key in ("image", "env", "envFrom")]
    assert not [label for label in shell["metadata"].get("labels", {}) if label.startswith(("app.", "tidegate."))]


def _replicas(cluster: Cluster, place: str) -> int:
    (deployment,) = cluster.listed("deployments", place)
    return int(deployment["spec"]["replicas"])


def test_failed_task_is_named_before_anything_is_touched(cluster: Cluster) -> None:
    """Helm would roll the pods, and then call the release failed for a Job of last week, with no migration after."""
    place = cluster.namespace("failed-task")
    task = ("--set", "backfills.repair.job=order-search", "--set", "backfills.repair.fromBeginning=true")
    token = _set("tasks", "tokenSecret.name=operator", "tokenSecret.key=token", *_FAILING)
    cluster.install(place, *_MINIMAL, *task, *token)
    (job,) = cluster.listed("jobs", place)
    name = job["metadata"]["name"]
    cluster.must("wait", "--for=condition=Failed", "-n", place, f"job/{name}", "--timeout", PATIENCE)
    before = _standing(cluster, place)

    new = ("--set", "image.tag=4.3")
    refused = cluster.refused("upgrade", "shop", "helm", "-n", place, *_MINIMAL, *task, *token, *new)

    assert f"backfills.repair: its Job {name} has failed (DeadlineExceeded)" in refused
    assert _standing(cluster, place) == before
    cluster.upgrade(place, *_MINIMAL, *new)
    assert not cluster.listed("jobs", place)


def test_uninstall_after_a_failed_migration_leaves_its_log(cluster: Cluster) -> None:
    """What is left is told in the documents; the next migration takes its place, as after a failed upgrade."""
    place = cluster.namespace("left")
    failing = _set("migrations", *_FAILING)
    cluster.refused("install", "shop", "helm", "-n", place, "--wait", *_MINIMAL, *failing)
    cluster.helm("uninstall", "shop", "-n", place, "--wait", "--timeout", PATIENCE)
    assert _jobs(cluster, place).keys() == {_PRE}


def _standing(cluster: Cluster, place: str) -> set[tuple[str, str]]:
    """Pods of workers, and the settings: which they are, and in which version."""
    pods = [each for each in cluster.listed("pods", place) if "tidegate.dev/part" in each["metadata"]["labels"]]
    config = [each for each in cluster.listed("configmaps", place) if each["metadata"]["name"].endswith("settings")]
    versions = {(each["metadata"]["name"], each["metadata"]["resourceVersion"]) for each in config}
    return versions | {(each["metadata"]["name"], each["metadata"]["uid"]) for each in pods}


def test_uninstall_leaves_nothing(cluster: Cluster) -> None:
    """What stays behind makes the next install fail, or runs on unseen."""
    place = cluster.namespace("gone")
    kinds = "deployments,statefulsets,jobs,pods,services,configmaps,serviceaccounts,scaledobjects,prometheusrules"
    before = _names(cluster, kinds, place)
    cluster.install(place, *_SHOP)
    assert _names(cluster, kinds, place) > before

    cluster.helm("uninstall", "shop", "-n", place, "--wait", "--timeout", PATIENCE)

    assert _names(cluster, kinds, place) == before


def _images(cluster: Cluster, place: str) -> set[str]:
    deployments = cluster.listed("deployments", place)
    assert all(each["status"].get("readyReplicas") == each["spec"]["replicas"] for each in deployments)
    return {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in deployments}


def _jobs(cluster: Cluster, place: str) -> dict[str, tuple[str, bool]]:
    """Jobs by name: which object it is, and whether it is complete."""
    return {
        each["metadata"]["name"]: (each["metadata"]["uid"], bool(each["status"].get("succeeded")))
        for each in cluster.listed("jobs", place)
    }


def _names(cluster: Cluster, kinds: str, place: str) -> set[str]:
    found = cluster.listed(kinds, place)
    return {
        f"{each['kind']}/{each['metadata']['name']}" for each in found if "deletionTimestamp" not in each["metadata"]
    }
