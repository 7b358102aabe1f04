"""`tidegate topics`: the Kafka topics an application needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, print_table, settings_of, wait_for
from tidegate.jobs.topic_plan import FoundTopic, PlannedTopic, Use, audit_topic, create_missing, dlq_topic, source_topic
from tidegate_kernel.errors import Misconfigured

topic_commands = typer.Typer(name="topics", help="The Kafka topics an application needs.", no_args_is_help=True)

_EXAMPLES = examples(
    "tidegate topics create --app shop.app:app",
    "tidegate topics create --app shop.app:app --replication 3 --also shop.ledger:8",
)


@topic_commands.callback()
def _group() -> None:
    """The Kafka topics an application needs."""


@topic_commands.command("create", epilog=_EXAMPLES)
def create_command(
    app: AppOption = None,
    replication: Annotated[int, typer.Option(min=-1, help="Copies of each partition; -1: the broker's default.")] = -1,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PARTITIONS]", help="A topic that handlers publish to; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create what is missing: topics that jobs read, one for the dead letters of each job, one for the audit."""
    topics = planned(load_app(app), also or [])
    found = wait_for(create_missing(settings_of().kafka, topics, replication=replication))
    if as_json:
        print_json([asdict(topic) for topic in found])
    else:
        print_table(["topic", "for", "partitions", ""], [_row(topic) for topic in found], right=["partitions"])


def planned(app: App, also: list[str]) -> list[PlannedTopic]:
    """Every topic of `app`, each once; what it reads first."""
    topics = [source_topic(topic) for topic in app.topics.values()]
    topics += [dlq_topic(name) for name in app.dlq_topics]
    topics += [_published(text) for text in also]
    topics.append(audit_topic())
    return list({topic.name: topic for topic in reversed(topics)}.values())[::-1]


def _published(text: str) -> PlannedTopic:
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdigit() or int(partitions or 1) < 1:
        raise Misconfigured(f"--also {text!r} is not of the form NAME or NAME:PARTITIONS, as in 'shop.ledger:8'")
    return PlannedTopic(name, Use.PUBLISHED, int(partitions or 8))


def _row(topic: FoundTopic) -> list[object]:
    return [topic.name, topic.use, topic.partitions, "created" if topic.is_new else "was there"]
