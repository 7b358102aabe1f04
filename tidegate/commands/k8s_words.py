"""The command of a Job: checked against the command line that will run it, before there is a Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

from typer.core import TyperGroup

from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command
from tidegate_kernel.errors import Misconfigured


class TaskKind(StrEnum):
    """What a Job does once; also the name of its container and its label `component`."""

    BACKFILL = "backfill"
    REPLAY = "replay"


def task_arguments(kind: TaskKind, words: Sequence[str]) -> Sequence[str]:
    """Returns what `tidegate` is told, of the words that were typed for it.

    They are parsed as `tidegate run` and `tidegate dlq replay` parse them, and what contradicts is refused as there;
    only what needs the application or the database is left to the Job. Raises Misconfigured, or the parser's own
    error: the process ends with 2 either way.
    """
    _refuse_bytes(words)
    if kind is TaskKind.REPLAY:
        arguments = ["dlq", "replay", *words]
        _refuse_replay(_parsed(arguments))
        return arguments
    typed = [word for word in words if word != "--backfill"]
    job = typed[:1] if typed and not typed[0].startswith("-") else []
    arguments = ["run", *job, "--backfill", *typed[len(job) :]]
    _refuse_backfill(_parsed(arguments))
    return arguments


def changes_nothing(kind: TaskKind, arguments: Sequence[str]) -> bool:
    """Whether the Job will only tell what it would do."""
    return kind is TaskKind.REPLAY and not {"--yes", "--resume"} & {word.partition("=")[0] for word in arguments}


def _parsed(arguments: Sequence[str]) -> Mapping[str, Any]:
    name, *rest = arguments
    command = load_command(name, COMMANDS[name])
    typed = ["tidegate", name]
    while isinstance(command, TyperGroup):
        name, *rest = rest
        typed.append(name)
        command = command.commands[name]
    parsed: Mapping[str, Any] = command.make_context(" ".join(typed), list(rest)).params
    return parsed


def _refuse_backfill(parsed: Mapping[str, Any]) -> None:
    # Here and below: with these come clients that the other kind has no use for.
    from tidegate.commands.backfill import backfill_start

    if parsed["all_jobs"] or parsed["check"] or len(parsed["jobs"] or ()) != 1:
        raise Misconfigured("a backfill is of one job: name it, as in 'tidegate k8s job backfill order-search …'")
    backfill_start(parsed["from_checkpoint"], parsed["from_beginning"], parsed["from_time"])


_PARAMETERS = {"letters": "letter", "type": "type_name"}


def _refuse_replay(parsed: Mapping[str, Any]) -> None:
    from tidegate.commands.dlq_filters import letter_id
    from tidegate.commands.dlq_words import How, Words, refuse_contradictions

    found = {each.name: parsed[_PARAMETERS.get(each.name, each.name)] for each in fields(Words)}
    words = Words(**{**found, "letters": found["letters"] or (), "status": found["status"] or ()})
    how = How(
        reason=parsed["reason"], is_sure=parsed["yes"], is_forced=parsed["force"], digest=parsed["digest"],
        rate=parsed["rate"], resume=parsed["resume"], from_topic=parsed["from_topic"], is_rehearsal=parsed["rehearse"],
    )  # fmt: skip
    refuse_contradictions(words, how)
    words.filter()
    for letter in words.letters:
        letter_id(letter)
    if how.is_sure and how.resume is None and not how.said_reason:
        raise Misconfigured("--yes needs --reason '…': why you do it, for the audit and whoever comes next")


def _refuse_bytes(words: Sequence[str]) -> None:
    for place, word in enumerate(words, start=1):
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in word):
            raise Misconfigured(f"word {place} of the Job's command is no text; a manifest cannot hold other bytes")
