"""A fold of accounts: what customers have spent, and when they close their accounts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
from pydantic import SecretStr

from projections.folds.renderer import Renderer
from projections.memory import MemorySink
from projections.sink import Sink
from tests.integration.road import SentRecord, record
from tidegate import App, CloudEvents, Event, FoldJob, Json, Rejected, Topic, fold
from tidegate.assembly import JobParts, assemble
from tidegate.resources import Resources
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings


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


async def assembled(dsn: str, pool: Pool, job: FoldJob[Balance], sink: Sink, *, version: str = "1") -> JobParts:
    """The job as another process has it, on a pool of its own."""
    app = App(service="tests", owner="tests", jobs=[job], version=version)
    settings = Settings(postgres_dsn=SecretStr(dsn))
    resources = Resources(settings, pool, SystemClock(), Metrics(), ThreadPoolExecutor(1), "tests")
    return await assemble(app, job, resources, sink=sink)


async def prepared_sink(**given: Any) -> MemorySink:
    sink = MemorySink("balances", **given)
    await sink.prepare()
    return sink


def renderer_of(parts: JobParts) -> Renderer:
    assert parts.renderer is not None
    return parts.renderer


def purchase(offset: int, account: str, cents: int, *, key: bytes = b"", **fields: Any) -> SentRecord:
    """An event of the account, under its own record key unless given."""
    return record(offset, spent(account, cents), type="spent", key=key or account.encode(), **fields)


def closing(offset: int, account: str, **fields: Any) -> SentRecord:
    return record(offset, b'{"account":"%s"}' % account.encode(), type="closed", key=account.encode(), **fields)


async def states(pool: Pool) -> dict[str, tuple[str | None, int]]:
    """What is kept of each key: the state and its revision."""
    rows = await pool.fetch(
        "SELECT key, state::text, revision FROM tidegate.fold_state WHERE revision > 0 ORDER BY key"
    )
    return {row["key"]: (row["state"], row["revision"]) for row in rows}


async def balance_of(pool: Pool, account: str) -> tuple[int, int]:
    """Cents and purchases of an account, none if there is no state."""
    state = (await states(pool)).get(account, (None, 0))[0]
    kept = msgspec.json.decode(state, type=Balance) if state else Balance(0)
    return kept.cents, kept.purchases


async def dirty(pool: Pool) -> list[str]:
    return [row["key"] for row in await pool.fetch("SELECT key FROM tidegate.dirty ORDER BY key")]
