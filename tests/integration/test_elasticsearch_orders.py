"""Newest wins in Elasticsearch, in ten random orders each: what arrives when, with what, how often, by which lane."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest
from elasticsearch import AsyncElasticsearch, NotFoundError

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.writes import MAX_VERSION, Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

SEEDS = range(10)


@dataclass
class Orders:
    """A prepared sink and what its readers see. Each order has keys of its own in one index."""

    sink: ElasticsearchSink
    declared: Elasticsearch
    client: AsyncElasticsearch

    async def play(self, writes: Sequence[Write], seed: int) -> int:
        """Delivers the writes in some order, a third of them twice, in batches of any size, by two lanes at once.

        Returns how many were stale.
        """
        dice = random.Random(seed)
        delivered = [*writes, *dice.sample(list(writes), k=len(writes) // 3)]
        dice.shuffle(delivered)
        batches: list[list[Write]] = []
        while delivered:
            size = dice.randint(1, 4)
            batches.append(delivered[:size])
            delivered = delivered[size:]
        return sum(await asyncio.gather(self._lane(batches[::2], dice), self._lane(batches[1::2], dice)))

    async def _lane(self, batches: Sequence[Sequence[Write]], dice: random.Random) -> int:
        stale = 0
        for batch in batches:
            applied = await self.sink.apply([self.sink.encode(write) for write in batch])
            assert applied.refused == ()
            stale += applied.stale
            if dice.random() < 0.3:
                await self.sink.refresh()
        return stale

    async def rows(self, seed: int) -> dict[str, int]:
        """Versions by key, of the keys of one order."""
        await self.sink.refresh()
        found = await self.client.search(index=self.declared.name, size=1000, query={"term": {"seed": seed}})
        return {hit["_source"]["key"]: hit["_source"]["v"] for hit in found["hits"]["hits"]}


@pytest.fixture
async def orders(stack: StackAddresses, unique_name: Callable[[str], str]) -> AsyncIterator[Orders]:
    fields = {"key": {"type": "keyword"}, "v": {"type": "long"}, "seed": {"type": "long"}}
    declared = Elasticsearch(
        index=unique_name("o"),
        mappings={"properties": fields},
        settings={"number_of_replicas": 0, "number_of_shards": 2, "gc_deletes": "0s"},
    )
    async with connect(Settings(elasticsearch_url=stack.elasticsearch_url)) as client:
        sink = ElasticsearchSink(declared, client)
        await sink.prepare()
        yield Orders(sink, declared, client)
        await client.indices.delete(index=declared.physical)
        with contextlib.suppress(NotFoundError):
            await client.indices.delete_index_template(name=f"tidegate-{declared.physical}")


def state(seed: int, key: str, version: int) -> Upsert:
    return Upsert(f"{seed}-{key}", version, {"key": key, "v": version, "seed": seed})


def gone(seed: int, key: str, version: int) -> Delete:
    return Delete(f"{seed}-{key}", version)


async def test_replayed_older_update_overwrites_nothing(orders: Orders) -> None:
    """Case 60, G3: v1 failed and is replayed when v2 and later ones are in; it is counted as stale, not as an error."""
    for seed in SEEDS:
        await orders.play([state(seed, f"k{n}", v) for n in range(4) for v in (2, 3)], seed)

        stale = await orders.play([state(seed, f"k{n}", 1) for n in range(4)], seed)

        assert stale == 5, f"all four and the one that came twice, seed {seed}"
        assert await orders.rows(seed) == {f"k{n}": 3 for n in range(4)}, f"seed {seed}"


async def test_backfill_among_live_writes_overwrites_nothing(orders: Orders) -> None:
    """Case 70, G3: live wrote v9, the backfill comes by with v3, before, after or in the middle."""
    for seed in SEEDS:
        live = [state(seed, f"k{n}", v) for n in range(4) for v in (8, 9)]
        backfilled = [state(seed, f"k{n}", v) for n in range(5) for v in (1, 3)]

        await orders.play([*live, *backfilled], seed)

        assert await orders.rows(seed) == {**{f"k{n}": 9 for n in range(4)}, "k4": 3}, f"seed {seed}"


async def test_newest_event_wins_whatever_its_offset(orders: Orders) -> None:
    """Case 89, G3: a key moved from partition 1 at offset 5000 to partition 2 at offset 200, and the topic was made
    anew; what counts is the event's own version, up to the largest."""
    for seed in SEEDS:
        first_partition = [state(seed, "k", version) for version in (0, 1, 2, 3)]
        second_partition = [state(seed, "k", version) for version in (4, 5)]
        recreated = [state(seed, "k", 6), state(seed, "other", 0)]
        largest = [state(seed, "last", version) for version in (MAX_VERSION, MAX_VERSION - 1, 2**53 + 1)]

        await orders.play([*first_partition, *second_partition, *recreated, *largest], seed)

        assert await orders.rows(seed) == {"k": 6, "other": 0, "last": MAX_VERSION}, f"seed {seed}"


async def test_deleted_stays_deleted_and_newer_stays(orders: Orders) -> None:
    """Case 90, G3: upsert v5, delete v6, late upsert v4; an old delete of a newer document; one that came back. The
    engine itself remembers no delete (gc_deletes 0)."""
    for seed in SEEDS:
        removed: list[Write] = [state(seed, "gone", 4), state(seed, "gone", 5), gone(seed, "gone", 6)]
        kept: list[Write] = [gone(seed, "kept", 3), state(seed, "kept", 4)]
        back: list[Write] = [state(seed, "back", 1), gone(seed, "back", 2), state(seed, "back", 3)]
        await orders.play([*removed, *kept, *back], seed)

        await orders.play([state(seed, "gone", 4), state(seed, "back", 1)], seed)

        assert await orders.rows(seed) == {"kept": 4, "back": 3}, f"seed {seed}"


async def test_same_id_in_one_batch_ends_with_the_newest_wherever_it_stands(orders: Orders) -> None:
    """Case 91: not the last by place, the last by version; of equal ones the last by place."""
    for seed in SEEDS:
        versions = [1, 2, 3, 4]
        random.Random(seed).shuffle(versions)
        batch: list[Write] = [state(seed, "k", version) for version in versions]
        batch += [Upsert(f"{seed}-tie", 7, {"key": "tie", "v": n, "seed": seed}) for n in range(3)]

        applied = await orders.sink.apply([orders.sink.encode(write) for write in batch])

        assert applied.refused == ()
        assert await orders.rows(seed) == {"k": 4, "tie": 2}, f"seed {seed}"
