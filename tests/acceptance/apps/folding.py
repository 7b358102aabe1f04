"""A small service with a fold: what was paid in all, by account, in Elasticsearch."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from tidegate import App, CloudEvents, Elasticsearch, Event, FoldJob, Json, Topic, fold

PREFIX = os.environ.get("SMALL_PREFIX", "small")


class Paid(BaseModel):
    account: str
    cents: int


class Total(BaseModel):
    cents: int = 0
    payments: int = 0


def pay(state: Total | None, event: Event[Paid]) -> Total:
    before = state or Total()
    return Total(cents=before.cents + event.data.cents, payments=before.payments + 1)


def account_of(event: Event[Paid]) -> str:
    return event.data.account


def document(account: str, state: Total) -> Mapping[str, Any]:
    if state.cents > 1_000_000:
        raise ValueError("nobody pays so much")
    return {"account": account, "cents": state.cents, "payments": state.payments}


MAPPINGS = {"properties": {"account": {"type": "keyword"}, "cents": {"type": "long"}, "payments": {"type": "long"}}}

payments = Topic(f"{PREFIX}.paid", format=Json(), envelope=CloudEvents(), partitions=2)
app = App(
    service=f"{PREFIX}-folding",
    owner="payments-team",
    version="1.0",
    jobs=[
        FoldJob(
            code="totals",
            topics=[payments],
            unlisted="skip",
            runbook="docs/runbooks/totals.md",
            events=[fold("paid", Paid, pay)],
            key=account_of,
            state=Total,
            render=document,
            sink=Elasticsearch(index=f"{PREFIX}-totals", mappings=MAPPINGS),
            freshness_sla=timedelta(seconds=5),
        )
    ],
)
