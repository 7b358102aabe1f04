"""A fold of accounts: what customers have spent, and when they close their accounts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from projections.memory import MemorySink
from tidegate import CloudEvents, Event, FoldJob, Json, Rejected, Topic, fold


class Spent(msgspec.Struct):
    account: str
    cents: int


class Closed(msgspec.Struct):
    account: str


class Balance(msgspec.Struct):
    cents: int
    purchases: int = 0


def spend(state: Balance | None, event: Event[Spent]) -> Balance | None:
    if event.data.cents < 0:
        raise ValueError("a purchase below zero")
    if event.data.cents == 13:
        raise Rejected("unlucky")
    before = state or Balance(0)
    return Balance(before.cents + event.data.cents, before.purchases + 1)


def close(state: Balance | None, event: Event[Closed]) -> Balance | None:  # the interface of a fold
    return None


def account_of(event: Event[Any]) -> str:
    account: str = event.data.account
    return account


def document(key: str, state: Balance) -> dict[str, Any]:
    return {"account": key, "cents": state.cents, "purchases": state.purchases}


def balances(sink: Any | None = None, *, topic: str = "orders", **fields: Any) -> FoldJob[Balance]:
    """The job `balances`."""
    declared = Topic(topic, format=Json(), envelope=CloudEvents())
    given: dict[str, Any] = {
        "code": "balances",
        "topics": [declared],
        "unlisted": "skip",
        "runbook": "-",
        "events": [fold("spent", Spent, spend), fold("closed", Closed, close)],
        "key": account_of,
        "state": Balance,
        "render": document,
        "sink": sink or MemorySink("balances"),
        "freshness_sla": timedelta(seconds=5),
    }
    return FoldJob(**{**given, **fields})


def spent(account: str, cents: int) -> bytes:
    return msgspec.json.encode(Spent(account, cents))
