"""The sink on a real Elasticsearch: what only the server can show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web
from elasticsearch import AsyncElasticsearch, NotFoundError

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.sink import Applied
from projections.writes import Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Misconfigured, Reason, Transient
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

FIELDS = {"order_id": {"type": "keyword"}, "cents": {"type": "long"}, "placed_at": {"type": "date"}}


@pytest.fixture
def settings(stack: StackAddresses) -> Settings:
    return Settings(elasticsearch_url=stack.elasticsearch_url)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[AsyncElasticsearch]:
    async with connect(settings) as opened:
        yield opened


@pytest.fixture
async def orders(unique_name: Callable[[str], str], client: AsyncElasticsearch) -> AsyncIterator[Elasticsearch]:
    """A declaration whose index goes with the test."""
    declared = declaration(unique_name("orders"))
    yield declared
    await client.indices.delete(index=declared.physical, ignore_unavailable=True)
    with contextlib.suppress(NotFoundError):
        await client.indices.delete_index_template(name=f"tidegate-{declared.physical}")


def declaration(index: str, **fields: Any) -> Elasticsearch:
    return Elasticsearch(index=index, mappings={"properties": {**FIELDS, **fields}}, settings={"number_of_replicas": 0})


@asynccontextmanager
async def prepared(declared: Elasticsearch, settings: Settings) -> AsyncIterator[ElasticsearchSink]:
    async with declared.open(settings) as sink:
        await sink.prepare()
        yield sink


async def apply(sink: ElasticsearchSink, writes: Sequence[Write]) -> Applied:
    return await sink.apply([sink.encode(write) for write in writes])


def order(number: int, **changed: Any) -> Upsert:
    document = {"order_id": f"o{number}", "cents": number, "placed_at": "2024-01-01T00:00:00Z", **changed}
    return Upsert(f"o{number}", number, document)


async def shown(client: AsyncElasticsearch, declared: Elasticsearch) -> dict[str, Any]:
    """What readers see through the alias."""
    await client.indices.refresh(index=declared.physical)
    found = await client.search(index=declared.name, size=1000)
    return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


async def test_every_kind_of_misfit_is_refused_and_the_others_are_in(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 86, G6: the server's own 400 variants, side by side with good, stale and equal writes in one request."""
    async with prepared(orders, settings) as sink:
        await apply(sink, [order(7)])
        misfits = [order(1, cents="many"), order(2, unknown=1), order(3, cents={"a": 1}), order(4, placed_at="soon")]

        applied = await apply(sink, [order(10), *misfits, Upsert("o7", 6, {"cents": 0}), order(7), Delete("absent", 1)])

    assert [refusal.index for refusal in applied.refused] == [1, 2, 3, 4]
    assert {refusal.reason for refusal in applied.refused} == {Reason.INVALID_DOCUMENT}
    assert applied.stale == 1
    assert set(await shown(client, orders)) == {"o7", "o10"}


async def test_refusal_names_the_field_and_holds_no_value(orders: Elasticsearch, settings: Settings) -> None:
    """A dead letter's message is shown to people who may not see the payload."""
    async with prepared(orders, settings) as sink:
        applied = await apply(sink, [order(1, cents="s3cret"), order(2, hidden="s3cret"), order(3, placed_at="s3cret")])

    messages = [refusal.message for refusal in applied.refused]
    assert [any(field in message for message in messages) for field in ("[cents]", "[hidden]", "[placed_at]")] == [
        True
    ] * 3
    assert not any("s3cret" in message for message in messages)


async def test_missing_index_is_transient_and_not_made_up(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 86: the server would create an index with guessed mappings, and every later check would fail on it."""
    async with orders.open(settings) as sink:
        with pytest.raises(Transient, match="run 'tidegate migrate'"):
            await apply(sink, [order(1)])

    assert not await client.indices.exists(index=orders.physical)
    assert not await client.indices.exists(index=orders.write_alias)


async def test_write_block_is_transient_and_passes(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 86, G5: a full disk or an operator's block must dead-letter nothing."""
    async with prepared(orders, settings) as sink:
        await client.indices.put_settings(index=orders.physical, settings={"index.blocks.write": True})
        with pytest.raises(Transient, match="cluster_block_exception"):
            await apply(sink, [order(1)])
        await client.indices.put_settings(index=orders.physical, settings={"index.blocks.write": False})

        assert await apply(sink, [order(1)]) == Applied()


async def test_closed_index_is_transient(orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch) -> None:
    """Case 86: it answers 400 like a bad document."""
    async with prepared(orders, settings) as sink:
        await client.indices.close(index=orders.physical)

        with pytest.raises(Transient, match="index_closed_exception"):
            await apply(sink, [order(1)])


async def test_fields_of_unknown_name_do_not_grow_the_mapping(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 94: a thousand dynamic keys would end all writes to the index."""
    async with prepared(orders, settings) as sink:
        before = await client.indices.get_mapping(index=orders.physical)

        applied = await apply(sink, [order(1, **{f"key{n}": n for n in range(1001)}), order(2)])

    assert [refusal.index for refusal in applied.refused] == [0]
    assert await client.indices.get_mapping(index=orders.physical) == before


async def test_time_out_after_the_server_applied_is_harmless(
    orders: Elasticsearch, stack: StackAddresses, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 88: the answer is lost, the call repeated: the same documents, nothing stale, nothing twice."""
    async with prepared(orders, settings):
        pass
    async with (
        losing_answers(stack.elasticsearch_url, lost=1) as address,
        orders.open(Settings(elasticsearch_url=address)) as sink,
    ):
        batch = [sink.encode(write) for write in (order(1), order(2), Delete("o3", 3))]
        with pytest.raises(Transient):
            await sink.apply(batch)

        applied = await sink.apply(batch)

    assert applied == Applied()
    assert {each: row["cents"] for each, row in (await shown(client, orders)).items()} == {"o1": 1, "o2": 2}


async def test_big_request_is_streamed(orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch) -> None:
    """Sent in one piece, several megabytes hold up the event loop (the HTTP client warns, and warnings fail here)."""
    declared = declaration(orders.index, text={"type": "text", "index": False})
    async with prepared(declared, settings) as sink:
        applied = await apply(sink, [order(n, text="x" * 100_000) for n in range(1, 31)])

    assert applied == Applied()
    assert len(await shown(client, orders)) == 30


async def test_unreachable_server_is_transient_and_probe_says_so(orders: Elasticsearch) -> None:
    """G5: an outage is no poison; the probe tells it from a bad batch."""
    async with orders.open(Settings(elasticsearch_url="http://127.0.0.1:1")) as sink:
        for call in (sink.prepare(), sink.check(), apply(sink, [order(1)])):
            with pytest.raises(Transient, match=orders.index):
                await call
        assert not await sink.probe()


async def test_readers_see_no_tombstones_and_count_none(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 90: the tombstone stays in the index; the alias hides it from every search."""
    async with prepared(orders, settings) as sink:
        await apply(sink, [order(1), order(2), Delete("o1", 5)])

    assert set(await shown(client, orders)) == {"o2"}
    assert (await client.count(index=orders.name))["count"] == 1
    assert (await client.count(index=orders.physical))["count"] == 2


async def test_prepare_heals_missing_aliases(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """An index restored from a snapshot comes without its aliases."""
    async with prepared(orders, settings) as sink:
        await client.indices.delete_alias(index=orders.physical, name=f"{orders.name},{orders.write_alias}")
        with pytest.raises(Misconfigured, match="tidegate migrate"):
            await sink.check()

        await sink.prepare()
        await apply(sink, [order(1), Delete("o2", 1)])

    assert set(await shown(client, orders)) == {"o1"}


async def test_index_under_the_readers_name_is_misconfigured(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """An index that stands where the alias belongs may be someone's data: it is not touched."""
    await client.indices.create(index=orders.name)
    try:
        async with orders.open(settings) as sink:
            with pytest.raises(Misconfigured, match="invalid_alias_name_exception"):
                await sink.prepare()
    finally:
        await client.indices.delete(index=orders.name)


async def test_lanes_share_a_sink(orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch) -> None:
    """Two lanes write at once, also to the same documents."""
    async with prepared(orders, settings) as sink:
        await asyncio.gather(*(apply(sink, [order(n) for n in range(1, 101)]) for _ in range(4)))

    assert len(await shown(client, orders)) == 100


@asynccontextmanager
async def losing_answers(address: str, *, lost: int) -> AsyncIterator[str]:
    """A proxy to `address` that carries every request and cuts the line instead of the first `lost` bulk answers."""
    remaining = lost

    async def carry(request: web.Request) -> web.StreamResponse:
        nonlocal remaining
        headers = {name: value for name, value in request.headers.items() if name.lower() in ("content-type", "accept")}
        async with session.request(
            request.method, address + request.path_qs, data=await request.read(), headers=headers
        ) as answer:
            body = await answer.read()
        if "_bulk" in request.path and remaining:
            remaining -= 1
            assert request.transport is not None
            request.transport.abort()
        kept = {name: answer.headers[name] for name in ("Content-Type", "X-Elastic-Product") if name in answer.headers}
        return web.Response(status=answer.status, body=body, headers=kept)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", carry)
    runner = web.AppRunner(application)
    async with ClientSession() as session:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
