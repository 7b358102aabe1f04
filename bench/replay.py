"""What a replay of dead letters costs: letters of a mended handler, a key each, through the job's own pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from aiokafka.structs import ConsumerRecord

from bench.records import new_orders
from bench.stub import Reading
from bench.workload import EVENT_TYPE, JOB, OrderPlaced
from consumers.batch import Batch
from consumers.claims import claims_of
from consumers.ledger import Ledger
from consumers.letters import failure_of_arrival
from consumers.replay import Replay
from consumers.replay_hands import Hands
from consumers.replay_verdicts import Verdicts
from dlq.parking import Blocking, park, record_key
from dlq.runs import Hold, RunKind, Wish, start_run
from inbox.store import claim_for_letters
from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Rejected, ScopeFields, Topic, handle, on
from tidegate.assembly import replay_hands
from tidegate.jobs.declaration import Job, silence_limit_of
from tidegate.jobs.decoding import decoder_of
from tidegate.resources import open_resources
from tidegate.worker import calm_collector
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import Fence, RunId
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings

_TOPIC = "orders"
_PARTITION = 0
_TOPIC_ID = UUID(int=1)
_BATCH = 500
_MOST_REPLAYS = 5
_TABLE = "CREATE TABLE placed (order_id text PRIMARY KEY, total_cents bigint NOT NULL)"
_PLACE = "INSERT INTO placed (order_id, total_cents) VALUES ($1, $2)"


@dataclass(frozen=True)
class PlaceOrder:
    """The command of an order."""

    order: OrderPlaced


def place_order(event: Event[OrderPlaced]) -> PlaceOrder:
    return PlaceOrder(event.data)


async def place(command: PlaceOrder, ctx: Context[None]) -> None:
    """One statement an event, as handlers are often written."""
    await ctx.db.execute(_PLACE, command.order.order_id, command.order.total_cents)


async def replay(settings: Settings, *, service: str, letters: int, is_parking: bool) -> Reading:
    """Keeps so many dead letters, then replays them; the reading is of the run alone."""
    configure_logs(style="json", level="info")
    app = _application(service, is_parking=is_parking)
    job = app.job(JOB)
    async with open_resources(app, settings, jobs=1, clock=SystemClock()) as resources:
        await resources.pool.execute(_TABLE)
        ledger, hands = await replay_hands(app, job, resources, sink=None, kind=RunKind.REPLAY)
        await _keep(job, ledger, letters, is_parking=is_parking)
        held = await _begin(ledger)
        calm_collector()
        reading = await _work_off(job, ledger, hands, held)
        if await resources.pool.fetchval("SELECT count(*) FROM placed") != letters:
            raise RuntimeError("the replay has not handled every letter")
    return reading


def _application(service: str, *, is_parking: bool) -> App:
    orders = Topic(_TOPIC, format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid", brand="brandid"))
    job = ConsumerJob(
        code=JOB,
        topics=[orders],
        unlisted="skip",
        runbook="docs/performance.md",
        events=[on(EVENT_TYPE, OrderPlaced, place_order)],
        order="park" if is_parking else "skip",
    )
    return App(service=service, owner="bench", jobs=[job], handlers=[handle(PlaceOrder, place)])


async def _keep(job: Job, ledger: Ledger, letters: int, *, is_parking: bool) -> None:
    """As the live consumer leaves them: claimed, kept, and in the way of their keys."""
    decoder = decoder_of(job)
    for batch in _batches(ledger, letters):
        claims = claims_of(ledger.rule, batch, decoder.decode(batch.records).events)
        failures = [
            failure_of_arrival(batch, first, Rejected("a bug"), reason=Reason.REJECTED, claim=key, handler="place")
            for key, first in zip(claims.keys, claims.firsts, strict=True)
        ]
        async with ledger.transaction() as connection:
            today = [ledger.clock.now().date()] * len(claims.keys)
            await claim_for_letters(connection, ledger.origin.job, claims.keys, made_on=today)
            kept = await ledger.keep(connection, failures)
            keys = {record.offset: record_key(record) for record in batch.records}
            blocking = [Blocking(kept[at], key, at) for at, key in keys.items() if key is not None]
            await park(connection, ledger.origin.job, blocking if is_parking else [], [])


def _batches(ledger: Ledger, letters: int) -> Iterator[Batch]:
    records = iter(_record(number, *written) for number, written in enumerate(new_orders(letters)))
    while some := list(islice(records, _BATCH)):
        fence = Fence(ledger.origin.job, RunId(0), _TOPIC, _PARTITION, 1, some[0].offset)
        yield Batch(fence, _TOPIC_ID, some, some[-1].offset + 1)


def _record(offset: int, timestamp: int, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
    return ConsumerRecord(
        _TOPIC, _PARTITION, offset, timestamp, 0, key, value, None, len(key), len(value), tuple(headers)
    )


async def _begin(ledger: Ledger) -> Hold:
    async with ledger.transaction() as connection:
        ids = [row["id"] for row in await connection.fetch("SELECT id FROM tidegate.dead_letter")]
        wish = Wish(kind=RunKind.REPLAY, letters=ids, digest="", reason="mended", asked_by="bench")
        return await start_run(connection, ledger.origin.job, wish, holder="bench")


async def _work_off(job: Job, ledger: Ledger, hands: Hands, held: Hold) -> Reading:
    verdicts = Verdicts(ledger, held, _MOST_REPLAYS, "bench", "mended", silence_limit_of(job))
    run = Replay(hands, verdicts, policy=job.retry, clock=ledger.clock)
    started, cpu = time.perf_counter(), time.process_time()
    await run.run()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Reading(run.tally.outcomes.total(), seconds, cpu)
