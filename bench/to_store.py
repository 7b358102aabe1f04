"""Contestants that write to a real store: Tidegate, the loops it is measured against, and what the store itself can do.

Two questions. From Kafka to the store: Tidegate against a loop with the same dedupe, and against one with none. The
store's side alone, as many batches at once as lanes: our sink against the shortest loop over the store's own client,
both of which make their requests from the same writes. `ready` sends requests whose bodies were made before: no
program that has to make them reaches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import chain, cycle, islice
from typing import Any, Protocol, TypeVar

from bench import peers
from bench.plan import Plan, Result, result_of
from bench.records import orders
from bench.stub import Stopwatch
from bench.workload import JOB, application, document
from projections.sink import EncodesAll, Sink, SinkDeclaration
from projections.writes import Upsert
from tidegate.worker import calm_collector, run_worker
from tidegate_kernel.logs import configure_logs
from tidegate_kernel.settings import Settings

_TENANT = "tenant-7"
# All of them in memory before the clock runs. A run that needs more takes them again: all contestants alike.
_DIFFERENT_WRITES = 200_000

Batch = TypeVar("Batch")


class ByHand(peers.Target, Protocol):
    """A store as a program without Tidegate writes to it: by the store's own client, and nothing checked before."""

    def body(self, formed: Sequence[Any]) -> bytes:
        """The body of the request that `send` makes of them."""

    async def post(self, body: bytes, rows: int) -> None:
        """The request is answered, and the stopwatch knows."""


class Store(Protocol):
    """A table or an index of one run. Each batch that is in drives its stopwatch."""

    @property
    def batch_size(self) -> int:
        """Of every contestant: what the declaration has as its default."""

    @property
    def declaration(self) -> SinkDeclaration:
        """As an application declares it."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Sink]:
        """Yields our sink."""

    def by_hand(self, settings: Settings) -> AbstractAsyncContextManager[ByHand]:
        """Yields the other way to it."""

    async def drop(self, settings: Settings) -> None:
        """It is gone."""


MakeStore = Callable[[Stopwatch], Store]


def contestants(store: str, *, ours: MakeStore, theirs: MakeStore) -> Mapping[str, Callable[..., Awaitable[Result]]]:
    """All of them, by name. `theirs` refreshes itself where ours is refreshed by Tidegate: readers see the same."""
    return {
        f"{store}: ready": partial(ready, theirs),
        f"{store}: bare sink loop": partial(bare_sink_loop, theirs),
        f"{store}: sink": partial(through_sink, theirs),
        f"{store}: raw": partial(peer, theirs, loop=peers.raw),
        f"{store}: hand-written": partial(peer, theirs, loop=peers.hand_written),
        f"{store}: tidegate": partial(tidegate, ours),
    }


async def tidegate(make: MakeStore, plan: Plan, settings: Settings) -> Result:
    """The whole road: fetched, decoded, claimed, projected, in the store, settled; all that `tidegate run` does."""
    stopwatch, stop = Stopwatch(plan.events), asyncio.Event()
    async with _made(make(stopwatch), settings) as store:
        configure_logs(style="json", level="info")
        app = application(plan.service, plan.topic, store.declaration)
        worker = asyncio.ensure_future(run_worker(app, settings, [JOB], stop=stop))
        reading = await stopwatch.read_while(worker)
        stop.set()
        await worker
    return result_of(reading)


async def peer(make: MakeStore, plan: Plan, settings: Settings, *, loop: peers.Loop) -> Result:
    """A loop that reads the same topic in batches of the same size, and writes by hand."""
    stopwatch = Stopwatch(plan.events)
    async with _made(make(stopwatch), settings) as store, store.by_hand(settings) as target:
        calm_collector()
        given = peers.Setting(settings, plan.topic, plan.service, store.batch_size, target)
        running = asyncio.ensure_future(loop(given))
        reading = await stopwatch.read_while(running)
        running.cancel()
        await asyncio.wait([running])
    return result_of(reading)


async def through_sink(make: MakeStore, plan: Plan, settings: Settings) -> Result:
    """Our sink without what comes before it: writes are checked, encoded as for a batch from Kafka, and applied."""
    stopwatch = Stopwatch(plan.events)
    async with _made(make(stopwatch), settings) as store, store.open(settings) as sink:

        async def apply(writes: Sequence[Upsert]) -> None:
            if isinstance(sink, EncodesAll):
                await sink.apply(sink.encode_all(writes))
            else:
                await sink.apply(list(map(sink.encode, writes)))

        await _by_lanes(list(_batches(plan.events, store.batch_size)), apply, lanes=plan.lanes)
    return result_of(stopwatch.read())


async def bare_sink_loop(make: MakeStore, plan: Plan, settings: Settings) -> Result:
    """The same writes by hand."""
    stopwatch = Stopwatch(plan.events)
    async with _made(make(stopwatch), settings) as store, store.by_hand(settings) as target:

        async def send(writes: Sequence[Upsert]) -> None:
            await target.send([target.form(write) for write in writes])

        await _by_lanes(list(_batches(plan.events, store.batch_size)), send, lanes=plan.lanes)
    return result_of(stopwatch.read())


async def ready(make: MakeStore, plan: Plan, settings: Settings) -> Result:
    """The requests of these writes, their bodies made before: what the server itself can do."""
    stopwatch = Stopwatch(plan.events)
    async with _made(make(stopwatch), settings) as store, store.by_hand(settings) as target:
        different = min(plan.events, _DIFFERENT_WRITES)
        made = [
            (target.body([target.form(write) for write in writes]), len(writes))
            for writes in _batches(different, store.batch_size)
        ]
        bodies = islice(cycle(made), -(-plan.events // store.batch_size))
        await _by_lanes(bodies, lambda body: target.post(*body), lanes=plan.lanes)
    return result_of(stopwatch.read())


@asynccontextmanager
async def _made(store: Store, settings: Settings) -> AsyncIterator[Store]:
    """It is there inside the block, as we prepare it for every contestant, and gone after it."""
    async with store.open(settings) as sink:
        await sink.prepare()
    try:
        yield store
    finally:
        await store.drop(settings)


async def _by_lanes(batches: Iterable[Batch], send: Callable[[Batch], Awaitable[None]], *, lanes: int) -> None:
    """All batches have been sent, as many at once as lanes."""
    calm_collector()
    waiting = iter(batches)

    async def lane() -> None:
        for batch in waiting:
            await send(batch)

    await asyncio.gather(*(lane() for _ in range(lanes)))


def _batches(events: int, size: int) -> Iterator[list[Upsert]]:
    """What the projection makes of so many orders, `size` to a batch."""
    different = [document(order, _TENANT) for order in orders(min(events, _DIFFERENT_WRITES))]
    writes = islice(chain.from_iterable(cycle([different])), events)
    while batch := list(islice(writes, size)):
        yield batch
