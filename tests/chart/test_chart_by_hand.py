"""`tidegate k8s job` and the chart make the same Job: one by hand and without Helm, one from the values."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chart.rendering import ROOT, Object, example, helm, library, objects, only, parsed, template
from tests.chart.schemas import VERSIONS, problems
from tests.typed_manifests import Typed
from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command
from tidegate.commands.yaml_text import yaml_text

_TOKEN = ("--token-secret", "tidegate-operator/token")
_TASKS: Mapping[str, Any] = {
    "tasks": {"tokenSecret": {"name": "tidegate-operator", "key": "token"}},
    "backfills": {"repair": {"job": "order-search", "fromCheckpoint": "nightly", "acceptGap": True}},
    "replays": {"mended": {"job": "ledger", "reason": "for $(TIDEGATE_TOKEN)", "rate": 200}},
}
_WORDS = {
    "backfill": ["order-search", "--from-checkpoint", "nightly", "--accept-gap"],
    "replay": ["--job", "ledger", "--reason", "for $(TIDEGATE_TOKEN)", "--yes", "--rate", "200"],
}
_KINDS = list(_WORDS)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    yield Typed(monkeypatch, capsys)
    structlog.reset_defaults()


def _by_the_chart(found: Sequence[Object], kind: str) -> dict[str, Any]:
    jobs = [each for each in found if each["kind"] == "Job"]
    labelled = [each for each in jobs if each["metadata"]["labels"]["app.kubernetes.io/component"] == kind]
    return _comparable(only(labelled, "Job"))


def _comparable(job: Object) -> dict[str, Any]:
    """Its specification, with lists whose order says nothing by their names."""
    spec: dict[str, Any] = json.loads(json.dumps(job["spec"]))
    pod = spec["template"]["spec"]
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        for key in ("env", "volumeMounts"):
            container[key] = {each["name"]: each for each in container.get(key, ())}
    pod["volumes"] = {each["name"]: each for each in pod["volumes"]}
    return spec


def _without_ttl(spec: dict[str, Any]) -> dict[str, Any]:
    """By hand it goes by itself after a day: no later upgrade would begin it anew."""
    assert spec.pop("ttlSecondsAfterFinished") == 86_400
    return spec


@pytest.mark.parametrize("kind", _KINDS)
def test_job_in_words_is_the_charts_own(kind: str, typed: Typed) -> None:
    """Two recipes of one pod come apart: one day the hand-made one runs with more rights, or without a limit."""
    secrets = {
        "env": {"TIDEGATE_POSTGRES_DSN": {"name": "shop-postgres", "key": "dsn"}},
        "files": {"secret": {"secretName": "shop-files", "defaultMode": 0o440}},
    }
    image = {"repository": "r/shop", "tag": "4.2", "pullSecrets": ["pull"]}
    made = objects(**_TASKS, image=image, secrets=secrets, drainTimeoutSeconds=40)
    by_hand = typed.manifest(
        kind, *_TOKEN, "--release", "shop", "--image", "r/shop:4.2", "--pull-secret", "pull", "--drain-seconds", "40",
        "--secret-env", "TIDEGATE_POSTGRES_DSN=shop-postgres/dsn", "--secret-files", "shop-files", *_WORDS[kind],
    )  # fmt: skip

    assert _without_ttl(_comparable(by_hand)) == _by_the_chart(made, kind)


# What a workload has for itself and its Jobs take over; the chart has it from `tasks`, which says it for all tasks.
_PLACE = {
    "shop": {},
    "static-members": {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "minimal": {},
    "external-secrets": {},
    "csi": {},
}
_COMPONENT = {"shop": "search", "static-members": "consumers"}


@cache
def _with_tasks(values: str) -> Sequence[Object]:
    tasks = {**_TASKS, "tasks": {**_TASKS["tasks"], **_PLACE[values]}}
    done = template("-f", f"helm/examples/{values}.yaml", values=tasks)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("values", _PLACE)
def test_job_like_a_workload_is_the_charts_own(values: str, kind: str, typed: Typed) -> None:
    """Certificates, logins, digests, pull secrets, drains: all that the release says, of a workload that runs."""
    made = _with_tasks(values)
    name = _COMPONENT.get(values, "worker")
    workload = next(each for each in made if each["kind"] in ("Deployment", "StatefulSet") and
                    each["metadata"]["name"].endswith(name))  # fmt: skip

    by_hand = _without_ttl(
        _comparable(typed.manifest(kind, *_TOKEN, "--like", "-", *_WORDS[kind], stdin=_text(workload)))
    )

    expected = _by_the_chart(made, kind)
    own = by_hand["template"]["spec"]["containers"][0]["env"].pop("SHOP_PREFIX", None)
    assert (own is not None) == (values == "static-members")  # `env` of the workload: the chart's task has `extraEnv`
    assert by_hand == expected


def _text(found: Object) -> str:
    return json.dumps(found)


def test_jobs_of_both_have_different_names(typed: Typed) -> None:
    """Helm refuses to take over what it has not made: the next upgrade would fail at a repair of last night."""
    made = {each["metadata"]["name"] for each in objects(**_TASKS) if each["kind"] == "Job"}
    words = ("--release", "shop", "--image", "i", *_TOKEN)
    names = {typed.manifest(kind, *words, "--task", task, *_WORDS[kind])["metadata"]["name"]
             for kind, task in (("backfill", "repair"), ("replay", "mended"))}  # fmt: skip
    assert not made & names
    assert len(made) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_job_is_one_that_kubernetes_takes(version: str, typed: Typed) -> None:
    """To the last key, as with the chart's objects."""
    workload = only(example("static-members"), "StatefulSet")
    words = ("--release", "shop", "--image", "r/shop:4.2", "-n", "shop", "--deadline", "6h", *_TOKEN)
    made = [typed.manifest(kind, *words, *_WORDS[kind]) for kind in _KINDS]
    made += [typed.manifest(kind, "--like", "-", *_TOKEN, *_WORDS[kind], stdin=_text(workload)) for kind in _KINDS]
    assert [problem for each in made for problem in problems(each, version)] == []


@pytest.mark.parametrize("kind", _KINDS)
def test_yaml_and_json_are_the_same_job(kind: str, typed: Typed) -> None:
    """What is read in a review is what a program gets."""
    words = ("--release", "shop", "--image", "r/shop:4.2", *_TOKEN, *_WORDS[kind])
    (read,) = parsed(typed.job(kind, *words)[0])
    assert read == typed.manifest(kind, *words)


def _told() -> Iterator[tuple[str, str]]:
    """Every `tidegate k8s job …` of the documents and of the help, and where it stands."""
    group = load_command("k8s", COMMANDS["k8s"]).commands["job"]
    texts = {f"help of {kind}": re.sub(r"\[/?\w+\]", "", group.commands[kind].epilog) for kind in _KINDS}
    for page in sorted((ROOT / "docs" / "kubernetes").glob("*.md")):
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        texts[page.name] = "\n".join(blocks)
    done = helm("install", "shop", "helm", "-n", "shop", "--dry-run=client")
    texts["NOTES"] = done.stdout.partition("NOTES:")[2]
    for place, text in texts.items():
        for line in text.replace("\\\n", " ").splitlines():
            yield from ((place, each.strip()) for each in line.removeprefix("$ ").split(" | ") if "k8s job" in each)


def test_jobs_of_the_documents_are_made(typed: Typed) -> None:
    """They are pasted at night, with a name or two changed."""
    workload = _text(next(each for each in example("minimal") if each["kind"] == "Deployment"))
    told = list(_told())
    assert len({place for place, _ in told}) == 4
    assert len(told) >= 8
    for place, command in told:
        words = shlex.split(command)
        assert words[:3] == ["tidegate", "k8s", "job"], place
        made = typed.manifest(*words[3:], stdin=workload)
        assert problems(made, VERSIONS[-1]) == [], place


_texts = st.text(st.characters(exclude_categories=["Cs"]))
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | _texts
    | st.sampled_from(["yes", "~", "1e3", "0o17", "a: b", "- a", "#"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(_texts, _values, max_size=3))
def test_yaml_says_what_was_meant(value: dict[str, Any]) -> None:
    """`yes`, `1e3`, a line that ends in a colon: each is text, or somebody's backfill begins elsewhere."""
    yaml = library("yaml")
    assert yaml.load(yaml_text(value), yaml.CSafeLoader) == value
