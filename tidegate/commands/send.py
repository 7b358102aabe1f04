"""`tidegate send`: an event made by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from consumers.topics import Topic
from tidegate.app import App
from tidegate.commands.loading import load_app
from tidegate.commands.moments import instant
from tidegate.commands.options import AppOption, examples, say, settings_of, wait_for
from tidegate.jobs.sending import EventDraft, check_data, drafted_event, send
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured

EXAMPLES = examples(
    """tidegate send shop.orders --type order.placed --key c1 --json '{"order_id": "o1", "total_cents": 1200}'""",
    "tidegate send shop.orders --type order.placed --tenant acme --json - < orders.jsonl",
    """tidegate send shop.orders --type order.placed --app shop.app:app --json '{}'   [dim]# checked first[/dim]""",
)


def send_command(
    topic: Annotated[str, typer.Argument(help="The topic; it must exist.")],
    type_: Annotated[str, typer.Option("--type", help="The event's type.")],
    data: Annotated[str, typer.Option("--json", metavar="JSON", help="Its data; '-' reads lines of it, one an event.")],
    key: Annotated[str | None, typer.Option(help="The record's key; events of one key stay in order.")] = None,
    event_id: Annotated[str | None, typer.Option("--id", help="The event's id; a new UUIDv7 by default.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The event's tenant.")] = None,
    brand: Annotated[str | None, typer.Option(help="The event's brand.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The schema version of the data.")] = None,
    time: Annotated[str | None, typer.Option(metavar="ISO", help="When it happened; now by default.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many times, each with an id of its own.")] = 1,
    app: AppOption = None,
) -> None:
    """Write a CloudEvent to a topic and print its id. With --app, data that a job would refuse is not sent."""
    lines = _lines(data) * count
    if event_id is not None and len(lines) > 1:
        raise Misconfigured(f"--id names one event, but {len(lines)} would be sent")
    at = SystemClock().now() if time is None else instant("--time", time)
    drafts = [
        EventDraft(type=type_, data=line, time=at, id=event_id, key=key, tenant=tenant, brand=brand, version=version)
        for line in lines
    ]
    declared = _checked(load_app(app), topic, drafts) if app else topic
    events = [drafted_event(declared, draft) for draft in drafts]
    wait_for(send(settings_of().kafka, [record for _, record in events]))
    for identity, _ in events:
        typer.echo(identity)


def _lines(data: str) -> list[bytes]:
    texts = [line for line in sys.stdin.read().splitlines() if line.strip()] if data == "-" else [data]
    for number, text in enumerate(texts, start=1):
        try:
            json.loads(text)
        except ValueError as error:
            where = f"--json: line {number}" if data == "-" else "--json"
            raise Misconfigured(f"{where} is no JSON ({error})") from error
    if not texts:
        raise Misconfigured("--json -: standard input held no line")
    return [text.encode() for text in texts]


def _checked(app: App, name: str, drafts: Sequence[EventDraft]) -> Topic | str:
    topic = app.topics.get(name)
    if topic is None:
        say(f"no job of service {app.service!r} reads topic {name!r}: the data is not checked")
        return name
    takers = {code for draft in drafts for code in check_data(app.jobs, topic, draft)}
    if not takers:
        say(f"no job of service {app.service!r} takes {drafts[0].type!r} from topic {name!r}")
    return topic
