"""`tidegate wait-for`: return when readers see a record, or say why they will not."""

from __future__ import annotations

import asyncio
from typing import Annotated
from uuid import UUID

import typer

from tidegate.app import App
from tidegate.commands.durations import duration
from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, settings_of, tell, wait_for
from tidegate.console.lag import read_logs
from tidegate.console.sight import Answer, Question, Sight
from tidegate.console.sights import Waiters, question_of
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured, TidegateError
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.postgres import open_pool
from tidegate_kernel.settings import Settings

EXAMPLES = examples(
    "tidegate wait-for order-search shop.orders:3:18277",
    "tidegate wait-for order-search shop.orders:3:18277 --timeout 5s && curl …  [dim]# read your own write[/dim]",
    "tidegate wait-for ledger shop.orders:3:18277 --json   [dim]# of a ConsumerJob: handled is visible[/dim]",
)

# Kafka says whether there is such a partition, and which topic has the name now. An answer without it is good enough.
_KAFKA_SECONDS = 5.0


def wait_for_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job whose readers wait.")],
    place: Annotated[str, typer.Argument(metavar="TOPIC:P:OFFSET", help="The record, by its place.")],
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait: 45s, 5m, 2h.")] = "30s",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until readers of a job see a record. Exit 1: not in time, or it is dead, parked or skipped, as told."""
    loaded = load_app(app)
    question = question_of(loaded, job, place)
    seconds = duration("--timeout", timeout).total_seconds()
    answer, waited = wait_for(_wait(loaded, settings_of(), question, seconds))
    if as_json:
        print_json(answer.plain(waited))
    else:
        tell(_told(answer, waited))
    if answer.sight is not Sight.VISIBLE:
        raise typer.Exit(1)


async def _wait(app: App, settings: Settings, question: Question, seconds: float) -> tuple[Answer, float]:
    dsn, clock = settings.postgres_dsn.get_secret_value(), SystemClock()
    await require_schema(dsn)
    began = clock.monotonic()
    topic_id = await _topic_id(settings, question)
    async with open_pool(dsn, size=1) as pool:
        waiters = Waiters(pool, app.service, clock)
        left = max(0.0, began + seconds - clock.monotonic())
        answer = await waiters.wait(question, left, topic_id=topic_id)
    return answer, clock.monotonic() - began


async def _topic_id(settings: Settings, question: Question) -> UUID | None:
    """The id of the topic as Kafka has it; None where Kafka cannot be asked. Raises Misconfigured for no such place."""
    try:
        async with asyncio.timeout(_KAFKA_SECONDS), open_reader(settings.kafka) as reader:
            logs = await read_logs(reader, [question.partition.topic])
    except (TidegateError, TimeoutError):
        return None
    if question.partition not in logs:
        raise Misconfigured(f"kafka has no partition {question.partition}; the form is TOPIC:PARTITION:OFFSET")
    return logs[question.partition].topic_id


def _told(answer: Answer, waited: float) -> str:
    told = f"{answer.question.job} {answer.question}: {answer.told}"
    match answer.sight:
        case Sight.VISIBLE:
            return f"{told}, after {waited:.1f} s"
        case Sight.PENDING:
            return f"{told}; gave up after {waited:.1f} s"
        case _:
            return told
