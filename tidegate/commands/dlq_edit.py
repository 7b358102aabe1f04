"""`tidegate dlq edit`: say what a dead letter's record should have said; the letter keeps what it said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from dlq.corrections import LARGEST_VALUE
from dlq.envelope import replay_instruction
from tidegate.app import App
from tidegate.commands.dlq_filters import letter_id
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    say,
    settings_of,
    tell,
    wait_for,
)
from tidegate.jobs.corrections import Digest, EditPlan, edit_letter, plan_edit
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate dlq edit 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1 --value-file fixed.json   [dim]# the plan[/dim]",
    "tidegate dlq edit 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1 --value-file fixed.json --reason 'cents were euros' --yes",
    "jq -c .payment order.json | tidegate dlq edit 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1 --value-file - --json",
)


def edit_command(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its id.")],
    value_file: Annotated[
        str, typer.Option("--value-file", metavar="FILE|-", help="The whole new value, byte for byte; - for stdin.")
    ],
    reason: Annotated[str, typer.Option(help="Why, for the audit and whoever comes next. Needed with --yes.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Keep it; without it the plan is shown.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a dead letter's record should have said: replay, backfill and every later read go by it. For admins.

    The letter keeps the original and stays dead until it is replayed. Key and headers stay as they are.
    """
    loaded = load_app(app)
    chosen, value = letter_id(letter), _read(value_file)
    settings = settings_of()
    plan = wait_for(_plan(settings, loaded, chosen, value))
    if not as_json:
        tell(*_told(plan))
    if yes:
        wait_for(_keep(settings, plan, reason))
    if as_json:
        print_json(_plain(plan, is_done=yes))
    elif yes:
        tell(f"kept; the letter stays {plan.state}. Next: {replay_instruction(plan.letter)}")
    else:
        say("nothing was changed; add --reason '…' --yes to keep it")


async def _plan(settings: Settings, app: App, letter: UUID, value: bytes) -> EditPlan:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await plan_edit(connection, app, letter, value)


async def _keep(settings: Settings, plan: EditPlan, reason: str) -> None:
    async with connect(settings.postgres_dsn.get_secret_value()) as connection:
        await edit_letter(connection, await actor_of(settings, connection), plan, reason=reason)


def _read(place: str) -> bytes:
    """No more than one byte over the limit is read, whatever is at the place."""
    try:
        if place == "-":
            return sys.stdin.buffer.read(LARGEST_VALUE + 1)
        with Path(place).open("rb") as file:
            return file.read(LARGEST_VALUE + 1)
    except OSError as error:
        raise Misconfigured(f"--value-file {place!r} cannot be read: {error.strerror}") from error


def _told(plan: EditPlan) -> Iterator[str]:
    yield f"letter:         {plan.letter}"
    yield f"job:            {plan.job}"
    yield f"record:         {plan.record}"
    yield f"state:          {plan.state}"
    yield f"value:          {_digest(plan.before)}"
    if plan.edited is not None:
        yield f"edited before:  {_digest(plan.edited)}"
    yield f"new value:      {_digest(plan.after)}"
    yield f"today it        {plan.reading.told}"


def _digest(digest: Digest | None) -> str:
    return "none" if digest is None else f"{digest.bytes} bytes, sha256 {digest.sha256}"


def _plain(plan: EditPlan, *, is_done: bool) -> dict[str, Any]:
    return {
        "letter": plan.letter,
        "job": plan.job,
        "record": plan.record,
        "state": plan.state,
        "value": plan.before and plan.before._asdict(),
        "edited_before": plan.edited and plan.edited._asdict(),
        "new_value": plan.after._asdict(),
        "is_event": plan.reading.is_event,
        "reading": plan.reading.told,
        "is_done": is_done,
        "next": replay_instruction(plan.letter) if is_done else None,
    }
