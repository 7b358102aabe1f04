"""Pods that do one thing: migrations around a roll, backfills, replays, the check of `helm test`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.chart.rendering import Object, example, objects, only, own_containers, parsed, pods, template, variables


def _annotation(found: Object, name: str) -> str:
    return str(found["metadata"].get("annotations", {}).get(f"helm.sh/{name}", ""))


def _args(job: Object) -> list[str]:
    return list(job["spec"]["template"]["spec"]["containers"][0]["args"])


def test_migrations_stand_around_the_roll() -> None:
    """New code needs its tables before it starts; what only old code needs goes after it has left."""
    pre, post = (only(example("shop"), "Job", f"migrate-{phase}") for phase in ("pre", "post"))
    assert _annotation(pre, "hook") == "pre-install,pre-upgrade"
    assert _annotation(post, "hook") == "post-install,post-upgrade"
    roles = ["--worker-role", "shop_worker", "--command-role", "shop_ops"]
    assert (_args(pre), _args(post)) == (["migrate", "--phase", "pre", *roles], ["migrate", "--phase", "post", *roles])


def test_rollback_takes_no_migration_back() -> None:
    """Old code runs on the new schema; undoing it would lose what was written since."""
    assert not any("rollback" in _annotation(each, "hook") for each in example("shop"))


def test_migration_needs_nothing_of_the_release() -> None:
    """Before the first install there is neither its ConfigMap nor its account."""
    pre = only(example("shop"), "Job", "migrate-pre")
    pod = pre["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "default"
    for each in own_containers(pod):
        assert "envFrom" not in each
        assert variables(each)["TIDEGATE_KAFKA_BOOTSTRAP"] == "kafka-1:9093,kafka-2:9093"
        assert variables(each)["TIDEGATE_POSTGRES_DSN"]["secretKeyRef"]["key"] == "owner-dsn"


def test_topics_come_before_the_migrations() -> None:
    """Workers refuse to start without them."""
    pod = only(example("shop"), "Job", "migrate-pre")["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["args"] == ["topics", "create", "--replication", "3"]
    assert "initContainers" not in only(example("shop"), "Job", "migrate-post")["spec"]["template"]["spec"]


def test_worker_has_not_the_owners_credentials() -> None:
    """Who may change tables may also empty the audit."""
    pod = only(example("shop"), "Deployment", "ledger")["spec"]["template"]["spec"]
    assert variables(pod["containers"][0])["TIDEGATE_POSTGRES_DSN"]["secretKeyRef"]["key"] == "worker-dsn"


def test_tasks_do_as_they_are_told() -> None:
    """They are typed once and act on production."""
    found = {each["metadata"]["name"].rpartition("-")[0]: _args(each) for each in example("tasks") if _is_task(each)}
    assert found == {
        "shop-tidegate-backfill-repair": [
            "run", "order-search", "--backfill", "--from-checkpoint", "nightly", "--accept-gap",
        ],
        "shop-tidegate-backfill-since-friday": [
            "run", "customer-ledger", "--backfill", "--from-time", "2026-11-27T00:00Z",
        ],
        "shop-tidegate-backfill-anew": ["run", "revenue-by-day", "--backfill", "--from-beginning"],
        "shop-tidegate-replay-mended": [
            "dlq", "replay", "--failed-for", "handler_failed", "--fingerprint", "3f0c9a2b7d11e604",
            "--job", "customer-ledger", "--since", "24h", "--reason", "mended in 4.2", "--yes", "--rate", "200",
        ],
        "shop-tidegate-replay-one": [
            "dlq", "replay", "--letter", "6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1", "--force",
            "--reason", "asked for by finance", "--yes",
        ],
        "shop-tidegate-replay-rest": ["dlq", "replay", "--resume", "17"],
    }  # fmt: skip


def _is_task(found: Object) -> bool:
    return found["kind"] == "Job" and not _annotation(found, "hook")


def test_task_acts_by_its_own_token() -> None:
    """The audit names who did it; workers need no token, and have none."""
    found = example("tasks")
    for each in filter(_is_task, found):
        given = variables(each["spec"]["template"]["spec"]["containers"][0])
        assert given["TIDEGATE_TOKEN"] == {"secretKeyRef": {"name": "tidegate-operator", "key": "token"}}
        assert given["TIDEGATE_POSTGRES_DSN"]["secretKeyRef"]["key"] == "command-dsn"
    worker = only(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "TIDEGATE_TOKEN" not in variables(worker)
    assert variables(worker)["TIDEGATE_POSTGRES_DSN"]["secretKeyRef"]["key"] == "worker-dsn"


def test_task_can_be_rendered_alone() -> None:
    """What docs/kubernetes/backfill-and-replay.md types for a repair at once, without an upgrade of the release."""
    token = ["--set", "tasks.tokenSecret.name=tidegate-operator", "--set", "tasks.tokenSecret.key=token"]
    task = ["--set", "backfills.repair.job=order-search", "--set", "backfills.repair.fromCheckpoint=nightly"]
    done = template("-f", "helm/examples/minimal.yaml", "--show-only", "templates/tasks.yaml", *token, *task)
    (job,) = parsed(done.stdout)
    assert _args(job) == ["run", "order-search", "--backfill", "--from-checkpoint", "nightly"]
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "backfill"


def test_migrations_after_the_roll_can_wait() -> None:
    """Who is not sure of a release wants to be able to go back further than to the version before."""
    hooks = {each["metadata"]["name"] for each in objects(migrations={"post": False}) if each["kind"] == "Job"}
    assert hooks == {"shop-tidegate-migrate-pre"}


def test_misuse_and_refusal_end_a_job_at_once() -> None:
    """Six more tries of a wrong word are six more rows in the audit; an eviction is no failure."""
    jobs = [each for each in example("tasks") if each["kind"] == "Job"]
    assert len(jobs) == 8
    for each in jobs:
        ignore, fail = each["spec"]["podFailurePolicy"]["rules"]
        assert ignore["action"] == "Ignore"
        assert ignore["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2, 3])
        assert each["spec"]["template"]["spec"]["restartPolicy"] == "Never"


_PLACED = {
    "nodeSelector": {"pool": "jobs"},
    "tolerations": [{"key": "pool", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "low",
    "podLabels": {"identity": "shop"},
    "podAnnotations": {"inject": "no"},
}


@pytest.mark.parametrize("section, component", [("migrations", "migrate-pre"), ("tasks", "backfill-repair")])
def test_jobs_are_placed_and_marked_as_it_is_said(section: str, component: str) -> None:
    """Where every node has a taint, or a proxy is put into every pod, an install would wait for its first Job."""
    values: dict[str, Any] = {"tasks": {"tokenSecret": {"name": "operator", "key": "token"}}}
    values[section] = {**values.get(section, {}), **_PLACED}
    found = objects(**values, backfills={"repair": {"job": "one", "fromBeginning": True}})
    jobs = [each for each in found if each["kind"] == "Job" and component in each["metadata"]["name"]]
    template = jobs[0]["spec"]["template"]
    for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert template["spec"][key] == _PLACED[key]
    assert template["metadata"]["labels"]["identity"] == "shop"
    assert template["metadata"]["annotations"] == {"inject": "no"}
    others = [pod for name, pod in pods(found) if component not in name and section == "tasks"]
    assert not any("nodeSelector" in pod for pod in others)


def test_check_goes_where_its_workload_goes() -> None:
    """`helm test` on a node that workers may not use tells nothing of them."""
    check = only(objects(worker=_PLACED), "Pod")
    assert (check["spec"]["nodeSelector"], check["spec"]["tolerations"]) == ({"pool": "jobs"}, _PLACED["tolerations"])
    assert check["metadata"]["labels"]["identity"] == "shop"
    assert check["metadata"]["annotations"]["inject"] == "no"


def test_task_ends_when_it_is_said_to() -> None:
    """Nobody looks at a Job that was begun last night."""
    task = {"tokenSecret": {"name": "operator", "key": "token"}}
    backfills = {"repair": {"job": "one", "fromBeginning": True}}
    bounded = objects(tasks={**task, "activeDeadlineSeconds": 3600, "ttlSecondsAfterFinished": 60}, backfills=backfills)
    (spec,) = (each["spec"] for each in bounded if _is_task(each))
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (3600, 60)
    (spec,) = (each["spec"] for each in objects(tasks=task, backfills=backfills) if _is_task(each))
    assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished"} & spec.keys()


def test_kubelet_fills_nothing_into_what_was_said() -> None:
    """`$(TIDEGATE_TOKEN)` in a reason would put the operator's token into the audit, and `$$` would lose a sign."""
    task = {"tokenSecret": {"name": "operator", "key": "token"}}
    replay = {"job": "one", "reason": "$(TIDEGATE_TOKEN) $$"}
    found = objects(tasks=task, replays={"a": replay}, settings={"TIDEGATE_KAFKA_SASL_USERNAME": "$$(HOME)"})
    (job,) = filter(_is_task, found)
    assert _args(job)[-2] == "$$(TIDEGATE_TOKEN) $$$$"
    hook = only(found, "Job", "migrate-pre")["spec"]["template"]["spec"]["containers"][0]
    assert variables(hook)["TIDEGATE_KAFKA_SASL_USERNAME"] == "$$$$(HOME)"
    # What comes by a ConfigMap is taken as it is.
    assert only(found, "ConfigMap", "settings")["data"]["TIDEGATE_KAFKA_SASL_USERNAME"] == "$$(HOME)"


def test_other_values_are_another_task_and_other_images_are_not() -> None:
    """A Job cannot be changed: under its old name an upgrade would fail, under a new one it would begin anew."""

    def name(task: Mapping[str, Any], **values: object) -> str:
        token = {"tokenSecret": {"name": "operator", "key": "token"}}
        found = objects(tasks=token, backfills={"repair": task}, **values)
        return str(next(each for each in found if _is_task(each))["metadata"]["name"])

    task = {"job": "order-search", "fromCheckpoint": "nightly"}
    assert name(task) == name(task, image={"tag": "4.3"}, settings={"TIDEGATE_LANES": 3})
    assert name(task) != name({**task, "fromCheckpoint": "weekly"})


def test_check_looks_at_what_each_workload_runs() -> None:
    """One that looked at all jobs could not run where workloads have settings of their own."""
    checks = {name: pod["containers"][0]["args"] for name, pod in pods(example("shop")) if name.startswith("Pod ")}
    assert checks == {
        "Pod shop-tidegate-ledger-check": ["run", "customer-ledger", "customer-value", "--check"],
        "Pod shop-tidegate-search-check": ["run", "order-search", "--lanes", "4", "--check"],
        "Pod shop-tidegate-revenue-check": ["run", "revenue-by-day", "--check"],
    }
