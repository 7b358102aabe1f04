"""Newest wins in ClickHouse, in ten random orders each: what arrives when, with what, how often, and between merges."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.writes import Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.settings import Settings

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("seed", range(10))]


@dataclass
class Orders:
    """A prepared sink and what its readers see."""

    sink: ClickHouseSink
    declared: ClickHouse
    connection: Connection

    async def play(self, writes: Sequence[Write], seed: int) -> None:
        """Delivers the writes in some order, some of them twice, in batches of any size, with merges between."""
        dice = random.Random(seed)
        delivered = [*writes, *dice.sample(list(writes), k=len(writes) // 3)]
        dice.shuffle(delivered)
        while delivered:
            size = dice.randint(1, 4)
            await self.sink.apply([self.sink.encode(write) for write in delivered[:size]])
            delivered = delivered[size:]
            if dice.random() < 0.3:
                await self.command(f"OPTIMIZE TABLE {self.declared.versioned_table.physical} FINAL")

    async def command(self, statement: str) -> None:
        await (await self.connection.client()).command(statement)

    async def rows(self) -> dict[str, int]:
        found = (await (await self.connection.client()).query(f"SELECT id, v FROM {self.declared.name}")).result_rows
        rows = {key: version for key, version in found}  # noqa: C416  # rows are no typed pairs
        assert len(rows) == len(found), "a reader sees a row twice"
        return rows


@pytest.fixture
async def orders(stack: StackAddresses, unique_name: Callable[[str], str]) -> AsyncIterator[Orders]:
    """A table by a month that changes with each version: versions of a row lie in several partitions."""
    settings = Settings(clickhouse_url=stack.clickhouse_url)
    name = unique_name("o").replace("-", "_")
    columns = {"id": "String", "v": "UInt64", "month": "UInt8"}
    declared = ClickHouse(table=name, columns=columns, order_by=("id",), partition_by="month")
    async with declared.open(settings) as sink:
        await sink.prepare()
        made = Orders(sink, declared, Connection(settings))
        yield made
        await made.command(f"DROP VIEW {name}")
        await made.command(f"DROP TABLE {declared.versioned_table.physical}")
        await made.connection.close()


def state(key: str, version: int) -> Upsert:
    return Upsert(key, version, {"id": key, "v": version, "month": version % 3})


async def test_replayed_older_update_overwrites_nothing(orders: Orders, seed: int) -> None:
    """Case 60, G3: v1 failed and is replayed when v2 and later ones are in."""
    failed = [state(f"k{n}", 1) for n in range(4)]
    await orders.play([state(f"k{n}", v) for n in range(4) for v in (2, 3)], seed)

    await orders.play(failed, seed)

    assert await orders.rows() == {f"k{n}": 3 for n in range(4)}


async def test_backfill_among_live_writes_overwrites_nothing(orders: Orders, seed: int) -> None:
    """Case 70, G3: live wrote v9, the backfill comes by with v3, before, after or in the middle."""
    live = [state(f"k{n}", v) for n in range(4) for v in (8, 9)]
    backfilled = [state(f"k{n}", v) for n in range(5) for v in (1, 3)]

    await orders.play([*live, *backfilled], seed)

    assert await orders.rows() == {**{f"k{n}": 9 for n in range(4)}, "k4": 3}


async def test_newest_event_wins_whatever_its_offset(orders: Orders, seed: int) -> None:
    """Case 89, G3: a key moved from partition 1 at offset 5000 to partition 2 at offset 200, and back; what counts is
    the event's own version."""
    first_partition = [state("k", version) for version in (1, 2, 3)]
    second_partition = [state("k", version) for version in (4, 5)]
    recreated = [state("k", 6), state("other", 1)]

    await orders.play([*first_partition, *second_partition, *recreated], seed)

    assert await orders.rows() == {"k": 6, "other": 1}


async def test_deleted_stays_deleted_and_newer_stays(orders: Orders, seed: int) -> None:
    """Case 90, G3: upsert v5, delete v6, late upsert v4; an old delete of a newer document; one that came back."""
    gone: list[Write] = [state("gone", 4), state("gone", 5), Delete("gone", 6)]
    kept: list[Write] = [Delete("kept", 3), state("kept", 4)]
    back: list[Write] = [state("back", 1), Delete("back", 2), state("back", 3)]

    await orders.play([*gone, *kept, *back], seed)
    await orders.command(f"OPTIMIZE TABLE {orders.declared.versioned_table.physical} FINAL")
    await orders.play([state("gone", 4), state("back", 1)], seed)

    assert await orders.rows() == {"kept": 4, "back": 3}
