"""`tidegate k8s job` prints what Kubernetes is to do once, or refuses at once what could only fail there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tests.typed_manifests import Typed
from tidegate.commands.face import COMMANDS
from tidegate.commands.k8s_settings import settings
from tidegate.commands.late import load_command

_SAID = ("--release", "shop", "--image", "r/shop:4.2", "--token-secret", "tidegate-operator/token")
_BACKFILL = ("backfill", *_SAID, "order-search", "--from-checkpoint", "nightly")
_REPLAY = ("replay", *_SAID, "--job", "ledger", "--reason", "mended in 4.2", "--yes")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    yield Typed(monkeypatch, capsys)
    structlog.reset_defaults()


def _container(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_job_runs_what_was_typed(typed: Typed) -> None:
    """The command line that an operator knows, and nothing that has to be learnt beside it."""
    backfill = _container(typed.manifest(*_BACKFILL, "--accept-gap"))
    replay = _container(typed.manifest(*_REPLAY))
    assert backfill["args"] == ["run", "order-search", "--backfill", "--from-checkpoint", "nightly", "--accept-gap"]
    assert replay["args"] == ["dlq", "replay", "--job", "ledger", "--reason", "mended in 4.2", "--yes"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["backfill", *_SAID, "order-search", "--from-checkpont", "nightly"], "No such option: --from-checkpont"),
        (["backfill", *_SAID, "order-search"], "needs one of --from-checkpoint"),
        (["backfill", *_SAID, "--from-beginning"], "a backfill is of one job"),
        (["backfill", *_SAID, "ledger", "search", "--from-beginning"], "a backfill is of one job"),
        (["backfill", *_SAID, "--all", "--from-beginning"], "a backfill is of one job"),
        (["backfill", *_SAID, "ledger", "--from-time", "yesterday"], "--from-time 'yesterday' is no ISO 8601"),
        (["replay", *_SAID, "--jobs", "ledger"], "No such option: --jobs"),
        (["replay", *_SAID, "--job", "ledger", "--failed-for", "nothing"], "'nothing' is not one of"),
        (["replay", *_SAID, "--letter", "one"], "'one' is no letter's id"),
        (["replay", *_SAID, "--yes", "--reason", "r"], "say which letters"),
        (["replay", *_SAID, "--job", "ledger", "--yes"], "--yes needs --reason"),
        (["replay", *_SAID, "--job", "ledger", "--since", "soon"], "--since 'soon'"),
        (["replay", *_SAID, "--resume", "3", "--job", "ledger"], "--resume takes a run as it is"),
        (["replay", *_SAID, "--job", "ledger", "--rehearse", "--yes"], "--rehearse changes nothing"),
        (["replay", *_SAID, "--job", "ledger", "--key", "a\udcff"], "word 4 of the Job's command is no text"),
    ],
)
def test_words_that_the_job_would_refuse_are_refused_here(words: list[str], said: str, typed: Typed) -> None:
    """Else the answer stands in the log of a pod, minutes later, and the pipe has created something."""
    assert said in " ".join(typed.refusal(*words).replace("│", " ").split())


@pytest.mark.parametrize(
    "words, said",
    [
        (["--image", "i", "--token-secret", "a/b"], "say --release and --image, or --like"),
        (["--release", "shop", "--token-secret", "a/b"], "say --release and --image, or --like"),
        ([*_SAID, "--task", "Two"], "--task 'Two'"),
        ([*_SAID, "--ttl", "soon"], "--ttl 'soon' is no duration"),
        ([*_SAID, "--deadline", "0h"], "--deadline '0h' is no duration"),
        ([*_SAID, "--limits", "memory=512mb"], "--limits 'memory=512mb' is not as in"),
        ([*_SAID, "--secret-env", "TIDEGATE_POSTGRES_DNS=a/b"], "'TIDEGATE_POSTGRES_DNS' is no setting"),
        ([*_SAID, "--secret-env", "TIDEGATE_HTTP_PORT=a/b"], "'TIDEGATE_HTTP_PORT' is no setting"),
        ([*_SAID, "--name", "a-name-of-far-too-many-letters-for-it"], "may have 52; shorten"),
        ([*_SAID, "--like", "nowhere.json"], "--like 'nowhere.json' cannot be read"),
    ],
)
def test_mistake_about_the_release_names_its_option(words: list[str], said: str, typed: Typed) -> None:
    """A Job that waits for a Secret that was misspelt looks as if it worked."""
    assert said in typed.refusal("backfill", *words, "order-search", "--from-beginning", "--accept-gap")


@pytest.mark.parametrize("option", ["--token-secret", "--secret-env"])
def test_secret_in_place_of_its_reference_is_refused_and_not_repeated(option: str, typed: Typed) -> None:
    """What is typed here ends in a manifest, in a pipeline's log, in a repository."""
    given = {"--token-secret": ["--token-secret", "tg_9f27b1"], "--secret-env": [*_SAID[4:], "--secret-env"]}[option]
    if option == "--secret-env":
        given = [*given, "TIDEGATE_POSTGRES_DSN=postgresql://u:tg_9f27b1@db/shop"]
    message = typed.refusal("backfill", *_SAID[:4], *given, "order-search", "--from-beginning")
    assert option in message
    assert "as in shop-postgres/dsn" in message
    assert "9f27b1" not in message


def test_every_secret_comes_by_reference(typed: Typed) -> None:
    """As with the chart: a manifest holds none."""
    secrets = [name for name, is_secret in settings().items() if is_secret]
    given = [word for name in secrets for word in ("--secret-env", f"{name}=shop/{name.lower()}")]
    variables = _container(typed.manifest(*_BACKFILL[:1], *given, *_BACKFILL[1:]))["env"]
    assert {each["name"] for each in variables} == set(secrets)
    assert all("value" not in each for each in variables)
    token = next(each for each in variables if each["name"] == "TIDEGATE_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "tidegate-operator", "key": "token"}


def test_kubelet_fills_nothing_into_the_words(typed: Typed) -> None:
    """`$(TIDEGATE_TOKEN)` in a reason would put the operator's token into the audit, where it stays for ever."""
    args = _container(
        typed.manifest("replay", *_SAID, "--letter", _LETTER, "--reason", "$(TIDEGATE_TOKEN) $$", "--yes")
    )
    assert args["args"][-2] == "$$(TIDEGATE_TOKEN) $$$$"


_LETTER = "6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1"


def test_same_words_are_the_same_job_and_a_task_is_another(typed: Typed) -> None:
    """Typed twice by two people in one incident it must run once; done again next week it must be possible."""

    def name(*words: str) -> str:
        return str(typed.manifest(*words)["metadata"]["name"])

    assert name(*_BACKFILL) == name("backfill", "--limits", "memory=1Gi", *_BACKFILL[1:])
    again = name("backfill", "--task", "again", *_BACKFILL[1:])
    assert len({name(*_BACKFILL), name(*_BACKFILL, "--accept-gap"), again, name(*_REPLAY)}) == 4
    assert again.startswith("shop-tidegate-backfill-again-")


def test_course_is_bounded_and_can_be_said(typed: Typed) -> None:
    """A Job that is tried for ever, or stays for ever, is somebody's next incident."""
    plain = typed.manifest(*_BACKFILL)["spec"]
    assert (plain["backoffLimit"], plain["ttlSecondsAfterFinished"]) == (6, 86_400)
    assert "activeDeadlineSeconds" not in plain
    assert plain["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    course = (
        "--backoff-limit",
        "0",
        "--ttl",
        "2h",
        "--deadline",
        "6h",
        "--drain-seconds",
        "40",
        "--limits",
        "memory=2Gi",
    )
    said = typed.manifest("backfill", *course, *_BACKFILL[1:])
    assert (said["spec"]["backoffLimit"], said["spec"]["ttlSecondsAfterFinished"]) == (0, 7_200)
    assert said["spec"]["activeDeadlineSeconds"] == 21_600
    assert said["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 50
    assert _container(said)["resources"]["limits"] == {"memory": "2Gi", "ephemeral-storage": "128Mi"}


def test_a_replay_that_only_plans_says_so(typed: Typed) -> None:
    """Whoever forgets --yes waits for letters that nobody has touched."""
    _, said = typed.job("replay", *_SAID, "--job", "ledger")
    assert "shows its plan in its log, and changes nothing" in said
    _, said = typed.job(*_REPLAY)
    assert "changes nothing" not in said
    assert "kubectl logs -f job/shop-tidegate-replay-" in said


def test_options_of_the_job_are_never_taken_for_its_commands() -> None:
    """`--json` alone is meant for the manifest; what else both had would change sides without a word."""
    group = load_command("k8s", COMMANDS["k8s"]).commands["job"]
    own = {option for each in group.commands["replay"].params for option in each.opts if option.startswith("-")}
    run, dlq = (load_command(name, COMMANDS[name]) for name in ("run", "dlq"))
    theirs = {option for each in (run, dlq.commands["replay"]) for p in each.params for option in p.opts}
    assert len(own) > 15
    assert own & theirs == {"--json"}


def test_words_after_two_hyphens_are_the_jobs(typed: Typed) -> None:
    """So that its report can be JSON, too."""
    args = _container(typed.manifest("replay", *_SAID, "--", "--job", "ledger", "--json"))["args"]
    assert args == ["dlq", "replay", "--job", "ledger", "--json"]


def _workload(**container: object) -> dict[str, Any]:
    labels = {f"app.kubernetes.io/{key}": value for key, value in
              (("name", "tidegate"), ("instance", "shop"), ("component", "search"))}  # fmt: skip
    worker = {"name": "worker", "image": "r/shop:4.2", "args": ["run"], **container}
    pod = {"containers": [{"name": "beside", "image": "i"}, worker], "terminationGracePeriodSeconds": 70}
    meta = {"labels": {**labels, "identity": "shop"}, "annotations": {"checksum/settings": "c", "inject": "no"}}
    spec = {"template": {"metadata": meta, "spec": pod}}
    return {"kind": "Deployment", "metadata": {"name": "shop-tidegate-search", "labels": labels}, "spec": spec}


def _like(typed: Typed, workload: object) -> dict[str, Any]:
    words = ("backfill", "--like", "-", *_SAID[4:], "order-search", "--from-beginning")
    return typed.manifest(*words, stdin=json.dumps(workload))


def test_job_like_a_workload_has_what_its_pods_are_given_and_not_what_makes_them_workers(typed: Typed) -> None:
    """Certificates, identities, proxies, addresses: whatever the release has, without typing it again."""
    env = [{"name": "TIDEGATE_KAFKA_INSTANCE_ID", "valueFrom": {}}, {"name": "SHOP_PREFIX", "value": "acme"}]
    found = _like(typed, _workload(env=env, livenessProbe={}, ports=[{"containerPort": 1}]))
    container, pod = _container(found), found["spec"]["template"]
    assert [each["name"] for each in container["env"]] == ["TIDEGATE_TOKEN", "SHOP_PREFIX"]
    assert not {"livenessProbe", "ports"} & container.keys()
    assert (container["image"], container["args"][:2]) == ("r/shop:4.2", ["run", "order-search"])
    assert pod["metadata"]["annotations"] == {"inject": "no"}
    assert pod["metadata"]["labels"]["identity"] == "shop"
    # Else the workload would take its pods for its own, and its budget would count them.
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "backfill"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 70
    assert found["metadata"]["name"].startswith("shop-tidegate-backfill-")


@pytest.mark.parametrize(
    "workload, said",
    [
        ("", "--like takes one workload as JSON"),
        ({"kind": "List", "items": []}, "--like takes one workload as JSON"),
        ({"kind": "Deployment", "metadata": {"name": "web"}}, "Deployment 'web' is none of the chart"),
        (_workload(name="app"), "has no container 'worker'"),
        (_workload(env=[{"name": "TIDEGATE_POSTGRES_DSN", "value": "tg_9f27b1"}]), "put it into a Secret"),
        (_workload(env=[{"name": "SHOP_API_KEY", "value": "tg_9f27b1"}]), "SHOP_API_KEY stands in the workload"),
    ],
)
def test_what_is_no_workload_to_copy_is_refused(workload: object, said: str, typed: Typed) -> None:
    """A secret that stands in the open would stand in one more place."""
    words = ("backfill", "--like", "-", *_SAID[4:], "order-search", "--from-beginning")
    message = typed.refusal(*words, stdin=workload if isinstance(workload, str) else json.dumps(workload))
    assert said in message
    assert "9f27b1" not in message


@pytest.mark.parametrize(
    "option", ["--release", "--config-map", "--service-account", "--secret-files", "--pull-secret"]
)
def test_what_the_workload_tells_is_not_said_as_well(option: str, typed: Typed) -> None:
    """Which of the two counts would be a guess."""
    words = ("backfill", "--like", "-", option, "x", *_SAID[4:], "order-search", "--from-beginning")
    assert f"{option} is told by the workload" in typed.refusal(*words, stdin=json.dumps(_workload()))
