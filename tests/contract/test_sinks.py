"""What every sink promises to the pipeline, on the fake and on the real servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest
from elasticsearch import NotFoundError

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from projections.memory import MemorySink
from projections.sink import Applied, Sink, SinkDeclaration
from projections.writes import MAX_VERSION, Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import InvalidDocument, Misconfigured
from tidegate_kernel.settings import Settings


class Store(Protocol):
    """One sink under test, and a reader's view of it."""

    settings: Settings

    @property
    def declaration(self) -> SinkDeclaration: ...

    async def read(self, document_id: str) -> int | None:
        """The `cents` of a document once all is refreshed, None where a reader sees no such document."""

    async def seen(self, document_id: str) -> int | None:
        """The same as a reader sees it at this moment, who refreshes nothing."""

    async def refusing(self) -> Upsert:
        """A write that encodes, and that the store itself refuses for good."""


class MemoryStore:
    def __init__(self) -> None:
        self.settings = Settings()
        self.declaration = MemorySink("orders", refuse={"refused"})

    async def read(self, document_id: str) -> int | None:
        row = self.declaration.get(document_id)
        return None if row is None else row["cents"]

    async def seen(self, document_id: str) -> int | None:
        return await self.read(document_id)

    async def refusing(self) -> Upsert:
        return upsert("refused", 1)


class ElasticsearchStore:
    def __init__(self, index: str, settings: Settings) -> None:
        properties = {"order_id": {"type": "keyword"}, "cents": {"type": "long"}}
        self.settings = settings
        self.declaration = Elasticsearch(
            index=index, mappings={"properties": properties}, settings={"number_of_replicas": 0}
        )

    async def read(self, document_id: str) -> int | None:
        async with connect(self.settings) as client:
            await client.indices.refresh(index=self.declaration.physical)
        return await self.seen(document_id)

    async def seen(self, document_id: str) -> int | None:
        async with connect(self.settings) as client:
            found = await client.search(index=self.declaration.name, query={"ids": {"values": [document_id]}})
        hits = found["hits"]["hits"]
        return hits[0]["_source"]["cents"] if hits else None

    async def refusing(self) -> Upsert:
        return Upsert("refused", 1, {"order_id": "refused", "cents": "no number"})

    async def drop(self) -> None:
        async with connect(self.settings) as client:
            await client.indices.delete(index=self.declaration.physical, ignore_unavailable=True)
            with contextlib.suppress(NotFoundError):
                await client.indices.delete_index_template(name=f"tidegate-{self.declaration.physical}")


class ClickHouseStore:
    def __init__(self, table: str, settings: Settings) -> None:
        self.settings = settings
        self.declaration = ClickHouse(
            table=table, columns={"order_id": "String", "cents": "UInt64"}, order_by=("order_id",)
        )
        self._connection = Connection(settings)
        self._physical = self.declaration.versioned_table.physical

    async def read(self, document_id: str) -> int | None:
        client = await self._connection.client()
        query = f"SELECT cents FROM {self.declaration.name} WHERE order_id = {{id:String}}"
        rows = (await client.query(query, parameters={"id": document_id})).result_rows
        assert len(rows) < 2
        return rows[0][0] if rows else None

    async def seen(self, document_id: str) -> int | None:
        return await self.read(document_id)

    async def refusing(self) -> Upsert:
        client = await self._connection.client()
        await client.command(f"ALTER TABLE {self._physical} ADD CONSTRAINT small CHECK cents < 1000000")
        return upsert("refused", 1, cents=1_000_000)

    async def drop(self) -> None:
        client = await self._connection.client()
        await client.command(f"DROP VIEW IF EXISTS {self.declaration.name}")
        await client.command(f"DROP TABLE IF EXISTS {self._physical}")
        await self._connection.close()


@asynccontextmanager
async def memory_store(stack: StackAddresses, name: str) -> AsyncIterator[Store]:
    yield MemoryStore()


@asynccontextmanager
async def elasticsearch_store(stack: StackAddresses, name: str) -> AsyncIterator[Store]:
    store = ElasticsearchStore(name, Settings(elasticsearch_url=stack.elasticsearch_url))
    yield store
    await store.drop()


@asynccontextmanager
async def clickhouse_store(stack: StackAddresses, name: str) -> AsyncIterator[Store]:
    store = ClickHouseStore(name.replace("-", "_"), Settings(clickhouse_url=stack.clickhouse_url))
    yield store
    await store.drop()


Opener = Callable[[StackAddresses, str], AbstractAsyncContextManager[Store]]


@pytest.fixture(
    params=[
        pytest.param(memory_store, id="memory"),
        pytest.param(elasticsearch_store, id="elasticsearch", marks=pytest.mark.servers),
        pytest.param(clickhouse_store, id="clickhouse", marks=pytest.mark.servers),
    ]
)
async def store(
    request: pytest.FixtureRequest, stack: StackAddresses, unique_name: Callable[[str], str]
) -> AsyncIterator[Store]:
    """A store without anything in it, not even index or table."""
    opener: Opener = request.param
    async with opener(stack, unique_name("s")) as opened:
        yield opened


@pytest.fixture
async def sink(store: Store) -> AsyncIterator[Sink]:
    """The open, prepared sink of `store`."""
    async with store.declaration.open(store.settings) as opened:
        await opened.prepare()
        yield opened


def upsert(document_id: str, version: int, *, cents: int | None = None) -> Upsert:
    """A document whose cents are its version unless told otherwise."""
    return Upsert(document_id, version, {"order_id": document_id, "cents": version if cents is None else cents})


async def apply(sink: Sink, writes: Sequence[Write]) -> Applied:
    return await sink.apply([sink.encode(write) for write in writes])


async def test_what_was_applied_is_read(store: Store, sink: Sink) -> None:
    """The least a sink must do."""
    applied = await apply(sink, [upsert("a", 1), upsert("b", 2)])

    assert applied == Applied()
    assert [await store.read("a"), await store.read("b"), await store.read("c")] == [1, 2, None]


@pytest.mark.parametrize("versions", list(itertools.permutations([1, 2, 3])))
async def test_newest_version_wins_under_any_order(store: Store, sink: Sink, versions: tuple[int, ...]) -> None:
    """Case 89, G3: replays, backfills and moved partitions deliver in any order; versions decide, not arrival."""
    for version in versions:
        await apply(sink, [upsert("a", version)])

    assert await store.read("a") == 3


async def test_newest_version_wins_within_one_batch(store: Store, sink: Sink) -> None:
    """Case 91: an id may come several times in a batch, in any order."""
    await apply(sink, [upsert("a", 2), upsert("b", 1), upsert("a", 3), upsert("a", 1)])

    assert [await store.read("a"), await store.read("b")] == [3, 1]


async def test_equal_version_applies_again(store: Store, sink: Sink) -> None:
    """A backfill after a fix of the projection writes the same versions with better documents."""
    await apply(sink, [upsert("a", 5, cents=1)])

    applied = await apply(sink, [upsert("a", 5, cents=2)])

    assert applied.refused == ()
    assert await store.read("a") == 2


async def test_applying_a_batch_twice_changes_nothing(store: Store, sink: Sink) -> None:
    """Case 88, G2: after an ambiguous answer the pipeline repeats the whole call."""
    batch = [sink.encode(write) for write in (upsert("a", 1), upsert("b", 2), Delete("c", 3))]
    await sink.apply(batch)

    applied = await sink.apply(batch)

    assert not applied.refused
    assert [await store.read("a"), await store.read("b"), await store.read("c")] == [1, 2, None]


async def test_deleted_document_does_not_come_back(store: Store, sink: Sink) -> None:
    """Case 90, G3: a late older event must not resurrect what was deleted."""
    await apply(sink, [upsert("a", 5)])
    await apply(sink, [Delete("a", 6)])

    await apply(sink, [upsert("a", 4)])

    assert await store.read("a") is None


async def test_newer_version_brings_a_deleted_document_back(store: Store, sink: Sink) -> None:
    """A tombstone is a version like any other: what came after it is live."""
    await apply(sink, [Delete("a", 6)])

    await apply(sink, [upsert("a", 7)])

    assert await store.read("a") == 7


async def test_older_delete_removes_nothing(store: Store, sink: Sink) -> None:
    """Case 90: an unversioned delete would remove the newer document."""
    await apply(sink, [upsert("a", 5)])

    await apply(sink, [Delete("a", 4)])

    assert await store.read("a") == 5


async def test_delete_of_an_unknown_document_is_no_failure(store: Store, sink: Sink) -> None:
    """Case 91: the document's only upsert may come later, or was compacted away."""
    applied = await apply(sink, [Delete("absent", 1), upsert("x", 1)])

    assert not applied.refused
    assert [await store.read("absent"), await store.read("x")] == [None, 1]


async def test_create_and_delete_in_one_batch_end_deleted(store: Store, sink: Sink) -> None:
    """Case 91: the two must not race inside the store."""
    await apply(sink, [upsert("k", 1), Delete("k", 2)])

    assert await store.read("k") is None


async def test_refused_write_costs_only_itself(store: Store, sink: Sink) -> None:
    """G6: one document that does not fit must not keep its neighbours out, nor make the batch fail for ever."""
    refused = await store.refusing()
    writes = [*(upsert(f"d{n}", n) for n in range(20)), refused, *(upsert(f"d{n}", n) for n in range(20, 40))]

    applied = await apply(sink, writes)

    assert [refusal.index for refusal in applied.refused] == [20]
    assert [await store.read(f"d{n}") for n in (0, 19, 20, 39)] == [0, 19, 20, 39]
    assert await store.read(refused.id) is None


async def test_prepare_twice_and_at_once_is_harmless(store: Store) -> None:
    """Every replica prepares at its start."""
    async with store.declaration.open(store.settings) as sink:
        await asyncio.gather(*(sink.prepare() for _ in range(4)))
        await apply(sink, [upsert("a", 1)])
        await sink.prepare()

        await sink.check()

    assert await store.read("a") == 1


async def test_check_before_prepare_names_the_remedy(store: Store) -> None:
    """A worker must not start to write into something that the server makes up."""
    async with store.declaration.open(store.settings) as sink:
        with pytest.raises(Misconfigured, match="tidegate migrate"):
            await sink.check()


@pytest.mark.parametrize("version", [0, MAX_VERSION])
async def test_outermost_versions_are_kept(store: Store, sink: Sink, version: int) -> None:
    """The bounds are part of the contract: a time in nanoseconds, and an aggregate's first version."""
    await apply(sink, [upsert("a", version, cents=7)])

    assert await store.read("a") == 7


@pytest.mark.parametrize("version", [-1, MAX_VERSION + 1, 1.0, True, "1"])
async def test_version_out_of_bounds_is_an_invalid_document(store: Store, version: Any) -> None:
    """One negative version fails a whole Elasticsearch bulk, and wraps around in ClickHouse."""
    async with store.declaration.open(store.settings) as sink:
        for write in (Upsert("a", version, {"order_id": "a", "cents": 1}), Delete("a", version)):
            with pytest.raises(InvalidDocument, match="version"):
                sink.encode(write)


async def test_empty_id_is_an_invalid_document(store: Store) -> None:
    """Elasticsearch refuses it, and ClickHouse would put all such documents into one row."""
    async with store.declaration.open(store.settings) as sink:
        with pytest.raises(InvalidDocument, match="id"):
            sink.encode(upsert("", 1))


async def test_empty_batch_is_no_request(sink: Sink) -> None:
    """A batch of skipped records has no writes; an empty bulk body is a client error."""
    assert await sink.apply([]) == Applied()


async def test_probe_answers_while_the_store_is_up(sink: Sink) -> None:
    """The breaker closes by this answer."""
    assert await sink.probe()


async def test_what_was_applied_before_a_refresh_is_seen_after_it(store: Store, sink: Sink) -> None:
    """Freshness is promised by it: `visible` is told when `refresh` has returned, and a reader must find it then."""
    for n in range(3):
        await apply(sink, [upsert(f"d{n}", n + 1)])

        await sink.refresh()

        assert await store.seen(f"d{n}") == n + 1


async def test_refresh_of_nothing_new_is_harmless(store: Store, sink: Sink) -> None:
    """Whoever takes the lease over does not know whether there is anything to refresh."""
    await sink.refresh()
    await sink.refresh()

    assert await store.seen("a") is None


async def test_reset_leaves_nothing_and_takes_everything_again(store: Store, sink: Sink) -> None:
    """A refill begins by it: older versions than those that were there must be taken again, tombstones too."""
    await apply(sink, [upsert("a", 5), Delete("b", 5)])

    await sink.reset()

    assert await sink.documents() == 0
    await sink.check()
    applied = await apply(sink, [upsert("a", 3), upsert("b", 3)])
    assert applied == Applied()
    assert [await store.read("a"), await store.read("b")] == [3, 3]


async def test_reset_makes_what_is_not_there(store: Store) -> None:
    """Killed after it had dropped index or table, it is called again."""
    async with store.declaration.open(store.settings) as sink:
        assert await sink.documents() == 0

        await sink.reset()

        await sink.check()


async def test_documents_are_counted(store: Store, sink: Sink) -> None:
    """A plan says how many would be gone."""
    await apply(sink, [upsert("a", 1), upsert("b", 1)])
    await sink.refresh()

    assert await sink.documents() == 2


async def test_purge_leaves_what_is_younger_and_what_lives(store: Store, sink: Sink) -> None:
    """A tombstone is a document like others: none but those that are old enough may go, and readers notice nothing."""
    await apply(sink, [upsert("a", 1), Delete("b", 2)])
    await sink.refresh()

    purged = await sink.purge(datetime.now(UTC) - timedelta(hours=1), 100)

    assert purged == 0
    await apply(sink, [upsert("b", 1)])
    assert [await store.read("a"), await store.read("b")] == [1, None]


async def test_purge_removes_as_many_tombstones_as_it_says(store: Store, sink: Sink) -> None:
    """Case 90: whoever calls it goes on until it returns less than asked for; one round must have an end."""
    await apply(sink, [upsert("a", 1), *(Delete(f"d{n}", 2) for n in range(3))])
    await sink.refresh()
    everything = datetime.now(UTC) + timedelta(hours=1)

    assert [await sink.purge(everything, 2) for _ in range(3)] == [2, 1, 0]
    assert await store.read("a") == 1


async def test_purge_leaves_what_is_newer_than_a_tombstone(store: Store, sink: Sink) -> None:
    """Case 90, G3: it came back before, or comes back right after."""
    await apply(sink, [upsert("back", 1), Delete("back", 2), upsert("back", 3), Delete("gone", 2)])
    await sink.refresh()
    everything = datetime.now(UTC) + timedelta(hours=1)

    while await sink.purge(everything, 100):
        pass
    await apply(sink, [upsert("gone", 3)])

    assert [await store.read("back"), await store.read("gone")] == [3, 3]
