"""A small service for tests of the command line: payments go to a table and to an index.

All names begin with a prefix from the environment, so that runs side by side do not meet.
"""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    Elasticsearch,
    Event,
    Json,
    ProjectionJob,
    Rejected,
    ScopeFields,
    Topic,
    Upsert,
    handle,
    on,
)

PREFIX = os.environ.get("SMALL_PREFIX", "small")
# The id of a payment whose handling ends the process, as a crash in a C library does.
KILLER = os.environ.get("SMALL_KILLER")
# How long the handler takes with payments whose id begins so.
WAITS_SECONDS = {"slow": 2.0, "hung": 3600.0}
# Makes a batch of the index take long enough to be killed in the middle of the work.
SLOWNESS_SECONDS = float(os.environ.get("SMALL_SLOWNESS_SECONDS", "0"))


class Paid(BaseModel):
    payment: str
    cents: int


@dataclass(frozen=True)
class KeepPayment:
    payment: str
    cents: int


def to_payment(event: Event[Paid]) -> KeepPayment:
    return KeepPayment(event.data.payment, event.data.cents)


def payment_of(event: Event[Paid]) -> str:
    return event.data.payment


async def keep_payment(command: KeepPayment, ctx: Context[None]) -> None:
    if command.payment == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(WAITS_SECONDS.get(command.payment.partition("-")[0], 0))
    if command.cents < 0:
        raise Rejected("a payment is not negative")
    await ctx.db.execute("INSERT INTO payment (id, cents) VALUES ($1, $2)", command.payment, command.cents)


def payment_document(event: Event[Paid]) -> Upsert:
    time.sleep(SLOWNESS_SECONDS)
    return Upsert(id=event.data.payment, version=1, document={"cents": event.data.cents})


payments = Topic(
    f"{PREFIX}.payments",
    format=Json(),
    envelope=CloudEvents(),
    scope=ScopeFields(tenant="tenantid", brand="brandid"),
    partitions=2,
)
app = App(
    service=PREFIX,
    owner="payments-team",
    jobs=[
        ConsumerJob(
            code="ledger",
            topics=[payments],
            unlisted="dead_letter",
            runbook="docs/runbooks/ledger.md",
            events=[on("payment.made", Paid, to_payment)],
            subjects={"payment": payment_of},
        ),
        ProjectionJob(
            code="search",
            topics=[payments],
            unlisted="skip",
            runbook="docs/runbooks/search.md",
            events=[on("payment.made", Paid, payment_document)],
            sink=Elasticsearch(index=f"{PREFIX}-payments", mappings={"properties": {"cents": {"type": "long"}}}),
            freshness_sla=timedelta(seconds=5),
        ),
    ],
    handlers=[handle(KeepPayment, keep_payment)],
    migrations=Path(__file__).with_name("migrations"),
)
