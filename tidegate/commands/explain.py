"""`tidegate explain`: why a partition does not move, with the evidence and the safe next command."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, settings_of, tell, wait_for
from tidegate.commands.pause import plain_intent
from tidegate.console.explaining import JobExplanation, explain_job
from tidegate.console.explanation import Cause, Explanation
from tidegate.console.facts import Facts, ago
from tidegate.console.rendering import told_rendering
from tidegate.jobs.selection import parse_place
from tidegate_kernel.clock import SystemClock

EXAMPLES = examples(
    "tidegate explain ledger",
    "tidegate explain ledger:3                 [dim]# partition 3 of every topic it reads[/dim]",
    "tidegate explain ledger:orders:3 --json",
)

_FINE = frozenset({Cause.CAUGHT_UP, Cause.MOVING})


def explain_command(
    what: Annotated[
        str, typer.Argument(metavar="JOB[:TOPIC:P]", help="A job, or one partition of it; JOB:P: of every topic.")
    ],
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of each partition why it does not move, or that it does. Needs no worker and no token."""
    loaded = load_app(app)
    code, _, place = what.partition(":")
    job = loaded.job(code)
    topic, partition = parse_place(job, place) if place else (None, None)
    answer = wait_for(
        explain_job(loaded, settings_of(), job, SystemClock(), topic=topic, partition=partition),
    )
    if as_json:
        print_json(_plain(answer))
    else:
        tell(*_told(answer))


def _told(answer: JobExplanation) -> list[str]:
    if answer.trouble is not None:
        return [f"{answer.job}: {answer.trouble.sentence}"]
    lines: list[str] = []
    for facts, found in answer.partitions:
        lines += [f"{answer.job} {facts.where}: {found.sentence}", *_evidence(facts)]
        lines += [f"    next: {command}" for command in found.commands]
    if not lines:
        lines = [
            f"{answer.job}: Kafka has none of its topics, and it never started; 'tidegate topics create' makes them"
        ]
    behind = [] if answer.rendering is None else told_rendering(answer.job, answer.rendering)
    lines += [f"{answer.job}: {told}" for told in behind]
    if behind or any(found.cause not in _FINE for _, found in answer.partitions):
        lines.append(f"runbook: {answer.runbook}")
    return lines


def _evidence(facts: Facts) -> list[str]:
    """One line of what the sentence rests on."""
    position = "none" if facts.position is None else str(facts.position.next_offset)
    log = "unknown" if facts.log is None else f"{facts.log.range.start} to {facts.log.range.end}"
    parts = [f"position {position}", f"log {log}"]
    if facts.view is not None:
        parts.append(f"visible to readers {'none' if facts.view.visible is None else f'up to {facts.view.visible}'}")
    if facts.said is not None:
        parts.append(f"owner {facts.said.owner} seen {ago(facts.said.seen_seconds)} ago, {facts.said.state}")
    return [f"    {', '.join(parts)}"]


def _plain(answer: JobExplanation) -> dict[str, Any]:
    return {
        "job": answer.job,
        "runbook": answer.runbook,
        "asked_at": answer.asked_at,
        "rendering": None if answer.rendering is None else asdict(answer.rendering),
        "trouble": None if answer.trouble is None else _plain_explanation(answer.trouble),
        "partitions": [{**_plain_explanation(found), **_plain_facts(facts)} for facts, found in answer.partitions],
    }


def _plain_explanation(found: Explanation) -> dict[str, Any]:
    return {"cause": found.cause, "sentence": found.sentence, "commands": list(found.commands)}


def _plain_facts(facts: Facts) -> dict[str, Any]:
    return {
        "topic": facts.partition.topic,
        "partition": facts.partition.partition,
        "position": None if facts.position is None else facts.position.next_offset,
        "moved_at": None if facts.position is None else facts.position.moved_at,
        "log_start": None if facts.log is None else facts.log.range.start,
        "log_end": None if facts.log is None else facts.log.range.end,
        "owner": None if facts.said is None else {**facts.said._asdict(), "is_seen": facts.owner_speaks},
        "intents": [plain_intent(each) for each in facts.intents],
        "kafka_trouble": facts.kafka_trouble,
        "view": None if facts.view is None else facts.view._asdict(),
    }
