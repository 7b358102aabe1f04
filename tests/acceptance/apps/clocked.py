"""A small service with one job by the clock: it notes payments of a tenant, as many as it is told to."""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

from pydantic import BaseModel

from tidegate import App, Context, Every, Page, ScheduledJob, Scope, answer, handle

PREFIX = os.environ.get("SMALL_PREFIX", "small")


class Options(BaseModel):
    payments: int = 3
    seconds: float = 0.0


@dataclass(frozen=True)
class PaymentsDue:
    page: Page


@dataclass(frozen=True)
class Note:
    payment: str
    seconds: float


async def payments_due(query: PaymentsDue, _: Context[None]) -> list[Note]:
    options, after = query.page.occasion.input, query.page.after or ""
    names = [f"p{number:03}" for number in range(options.payments)]
    return [Note(name, options.seconds) for name in names if name > after][: query.page.limit]


async def note(command: Note, ctx: Context[None]) -> None:
    await asyncio.sleep(command.seconds)
    name = f"{ctx.scope.tenant}/{command.payment}/{ctx.event.occurred_at:%H:%M:%S.%f}"
    await ctx.db.execute("INSERT INTO payment (id, cents) VALUES ($1, 1)", name)


def itself(due: Note) -> Note:
    return due


def payment_of(due: Note) -> str:
    return due.payment


notes = ScheduledJob(
    code="notes",
    trigger=Every(timedelta(seconds=2)),
    query=PaymentsDue,
    command=itself,
    key=payment_of,
    scopes=[Scope("acme")],
    runbook="docs/runbooks/notes.md",
    partial_failure="stop",
    input=Options,
)
asked = ScheduledJob(
    code="asked",
    trigger=None,
    query=PaymentsDue,
    command=itself,
    key=payment_of,
    scopes=[Scope("acme"), Scope("zeta")],
    runbook="docs/runbooks/notes.md",
    partial_failure="stop",
    input=Options,
)
app = App(
    service=f"{PREFIX}-clock",
    owner="payments-team",
    jobs=[],
    clock_jobs=[notes, asked],
    handlers=[answer(PaymentsDue, payments_due), handle(Note, note)],
)
