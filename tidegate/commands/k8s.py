"""`tidegate k8s`: manifests of what is done once in a cluster, for `kubectl create -f -`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.durations import duration
from tidegate.commands.k8s_manifest import Course, Task, job
from tidegate.commands.k8s_release import Release, Said, SecretKey, release_in_words, release_of_workload
from tidegate.commands.k8s_settings import settings
from tidegate.commands.k8s_words import TaskKind, changes_nothing, task_arguments
from tidegate.commands.options import examples, print_json, say
from tidegate.commands.yaml_text import yaml_text
from tidegate_kernel.errors import Misconfigured

k8s_commands = typer.Typer(
    name="k8s",
    help="Manifests for Kubernetes of what is done once; needs neither Helm nor a server.",
    no_args_is_help=True,
)
job_commands = typer.Typer(
    name="job", help="A Job as the chart makes it, for 'kubectl create -f -'.", no_args_is_help=True
)
k8s_commands.add_typer(job_commands)

_LIKE = "kubectl -n shop get deployment shop-tidegate-worker -o json | tidegate k8s job"
_WORDS = "--release shop --image registry.example.com/shop:4.2 --token-secret tidegate-operator/token"
_DSN = "--secret-env TIDEGATE_POSTGRES_DSN=shop-postgres/command-dsn"
_CREATE = "kubectl -n shop create -f -"
_BACKFILL_EXAMPLES = examples(
    f"{_LIKE} backfill --like - --token-secret tidegate-operator/token order-search --from-checkpoint noon | {_CREATE}",
    f"tidegate k8s job backfill {_WORDS} {_DSN} order-search --from-time 2026-11-27T00:00Z --accept-gap | {_CREATE}",
)
_REPLAY_EXAMPLES = examples(
    f"{_LIKE} replay --like - --token-secret tidegate-operator/token "
    f"--job customer-ledger --fingerprint 3f0c9a2b7d11e604 --reason 'mended in 4.2' --yes | {_CREATE}",
    f"tidegate k8s job replay {_WORDS} {_DSN} --resume 17 | {_CREATE}",
)

_FOR_THE_JOB = {"ignore_unknown_options": True}
_RELEASE, _COURSE = "The release", "The Job"
_DEFAULT_RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "250m", "memory": "192Mi", "ephemeral-storage": "64Mi"},
    "limits": {"memory": "512Mi", "ephemeral-storage": "128Mi"},
}
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?")
_TASK_NAME = re.compile(r"[a-z]([-a-z0-9]{0,14}[a-z0-9])?")
_REFERENCE = re.compile(r"(?P<secret>[a-z0-9]([-a-z0-9.]*[a-z0-9])?)/(?P<key>[-._a-zA-Z0-9]+)")


@job_commands.command("backfill", context_settings=_FOR_THE_JOB, epilog=_BACKFILL_EXAMPLES)
@job_commands.command("replay", context_settings=_FOR_THE_JOB, epilog=_REPLAY_EXAMPLES)
def job_command(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS...", help="What 'tidegate run --backfill' or 'tidegate dlq replay' is told."),
    ],
    token_secret: Annotated[
        str, typer.Option("--token-secret", metavar="SECRET/KEY", help="Where the operator's access token is.")
    ],
    like: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", rich_help_panel=_RELEASE, help="All of it from a workload: 'kubectl get … -o json'."
        ),
    ] = None,
    release: Annotated[str | None, typer.Option(rich_help_panel=_RELEASE, help="Its name; or --like.")] = None,
    image: Annotated[str | None, typer.Option(rich_help_panel=_RELEASE, help="Its image; or --like.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", rich_help_panel=_RELEASE, help="Else kubectl's.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(rich_help_panel=_RELEASE, help="What its objects begin with: fullnameOverride.")
    ] = None,
    config_map: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=_RELEASE, help="Of its settings, if not the chart's.")
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=SECRET/KEY", rich_help_panel=_RELEASE, help="A setting from a Secret; repeat."),
    ] = None,
    secret_files: Annotated[
        str | None,
        typer.Option(metavar="SECRET", rich_help_panel=_RELEASE, help="Settings as files, as secrets.files."),
    ] = None,
    service_account: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=_RELEASE, help="If not the chart's.")
    ] = None,
    pull_secret: Annotated[
        list[str] | None, typer.Option(metavar="SECRET", rich_help_panel=_RELEASE, help="For the image; repeat.")
    ] = None,
    drain_seconds: Annotated[
        int | None,
        typer.Option(min=1, max=600, rich_help_panel=_RELEASE, help="drainTimeoutSeconds; 20. Killed 10 s later."),
    ] = None,
    task: Annotated[
        str,
        typer.Option(metavar="NAME", rich_help_panel=_COURSE, help="To do again what has been done in these words."),
    ] = "",
    backoff_limit: Annotated[
        int, typer.Option(min=0, rich_help_panel=_COURSE, help="Tries after failures of its own; evictions are none.")
    ] = 6,
    ttl: Annotated[
        str, typer.Option(metavar="1d", rich_help_panel=_COURSE, help="So long it stays after its end.")
    ] = "1d",
    deadline: Annotated[
        str | None, typer.Option(metavar="6h", rich_help_panel=_COURSE, help="Ended by Kubernetes after that.")
    ] = None,
    requests: Annotated[
        str, typer.Option(metavar="cpu=…,memory=…", rich_help_panel=_COURSE, help="Beside the chart's defaults.")
    ] = "",
    limits: Annotated[
        str, typer.Option(metavar="memory=…", rich_help_panel=_COURSE, help="Beside the chart's defaults.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not YAML.")] = False,
) -> None:
    """Print a Job of Kubernetes that does it once, in the release's image with its settings. Nothing is changed here.

    WORDS are checked as the command itself checks them. After `--` all are the Job's, also `--json`.
    """
    kind = TaskKind(str(context.info_name))
    asked = Task(kind, task_arguments(kind, words), _task_name(task))
    said = Said(
        release=release, name=name, namespace=namespace, image=image, config_map=config_map, account=service_account,
        secret_files=secret_files, pull_secrets=pull_secret or (), drain_seconds=drain_seconds,
    )  # fmt: skip
    keys = {**_keys(secret_env or ()), "TIDEGATE_TOKEN": _key("--token-secret", token_secret)}
    course = Course(
        backoff_limit=backoff_limit, ttl_seconds=_seconds("--ttl", ttl),
        deadline_seconds=None if deadline is None else _seconds("--deadline", deadline),
        resources=_resources(requests, limits),
    )  # fmt: skip
    made = job(_release(like, said).with_secrets(keys), asked, course)
    if as_json:
        print_json(made)
    else:
        typer.echo(yaml_text(made), nl=False)
    if changes_nothing(kind, asked.arguments):
        say("without --yes this Job shows its plan in its log, and changes nothing")
    place = f" -n {made['metadata']['namespace']}" if "namespace" in made["metadata"] else ""
    say(f"once it is created, follow it: kubectl{place} logs -f job/{made['metadata']['name']}")


def _release(like: str | None, said: Said) -> Release:
    if like is None:
        return release_in_words(said)
    try:
        text = sys.stdin.read() if like == "-" else Path(like).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--like {like!r} cannot be read: {error}") from error
    return release_of_workload(text, said)


def _keys(given: Sequence[str]) -> Mapping[str, SecretKey]:
    keys = {}
    for each in given:
        setting, _, reference = each.partition("=")
        if setting not in settings():
            raise Misconfigured(f"--secret-env: {setting!r} is no setting; docs/settings.md lists them")
        keys[setting] = _key(f"--secret-env {setting}", reference)
    return keys


def _key(option: str, text: str) -> SecretKey:
    found = _REFERENCE.fullmatch(text)
    if found is None:  # without what was typed: it may be the secret itself
        raise Misconfigured(f"{option} takes a Secret and its key, as in shop-postgres/dsn, and never a secret itself")
    return SecretKey(found["secret"], found["key"])


def _task_name(text: str) -> str:
    if text and not _TASK_NAME.fullmatch(text):
        raise Misconfigured(f"--task {text!r}: up to 16 small letters, digits and hyphens, beginning with a letter")
    return text


def _seconds(option: str, text: str) -> int:
    return int(duration(option, text).total_seconds())


def _resources(requests: str, limits: str) -> Mapping[str, Mapping[str, str]]:
    said = {"requests": _quantities("--requests", requests), "limits": _quantities("--limits", limits)}
    return {name: {**default, **said[name]} for name, default in _DEFAULT_RESOURCES.items()}


def _quantities(option: str, text: str) -> Mapping[str, str]:
    pairs = [each.partition("=")[::2] for each in text.split(",") if each]
    for resource, quantity in pairs:
        if not resource or not _QUANTITY.fullmatch(quantity):
            raise Misconfigured(f"{option} {text!r} is not as in cpu=500m,memory=512Mi")
    return dict(pairs)
