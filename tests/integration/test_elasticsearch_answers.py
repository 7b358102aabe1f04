"""Every answer that a single real server can be brought to give to a bulk request, and what becomes of the batch."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from elasticsearch import AsyncElasticsearch, NotFoundError

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_bulk import Answer
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.sink import Applied
from projections.writes import Delete, Upsert, Write
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import InvalidDocument, Misconfigured, Reason, Transient
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

FIELDS: Mapping[str, Any] = {
    "key": {"type": "keyword"},
    "n": {"type": "long"},
    "inner": {"properties": {"x": {"type": "long"}}},
    "text": {"type": "text", "index": False},
}


class Hurried(SystemClock):
    """Waits for nothing, and writes down for how long it was asked to."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Heard:
    """A sink that keeps the answers it got."""

    def __init__(self, declared: Elasticsearch, client: AsyncElasticsearch) -> None:
        self.clock = Hurried()
        self.declared, self.client = declared, client
        self.sink = ElasticsearchSink(declared, client, self.clock)
        self.answers: list[Answer] = []
        self._post = self.sink._post
        self.sink._writer._post = self._heard

    async def _heard(self, body: bytes) -> Answer:
        self.answers.append(await self._post(body))
        return self.answers[-1]

    async def apply(self, *writes: Write) -> Applied:
        return await self.sink.apply([self.sink.encode(write) for write in writes])

    async def block(self, **blocks: bool | None) -> None:
        settings = {f"index.blocks.{name}": value for name, value in blocks.items()}
        await self.client.indices.put_settings(index=self.declared.physical, settings=settings)

    @property
    def outcomes(self) -> list[tuple[int, str]]:
        """Status and error type of each item that failed, of all answers."""
        return [
            (item["index"]["status"], item["index"]["error"]["type"])
            for answer in self.answers
            for item in answer.body.get("items", ())
            if "error" in item["index"]
        ]


@pytest.fixture
async def client(stack: StackAddresses) -> AsyncIterator[AsyncElasticsearch]:
    async with connect(Settings(elasticsearch_url=stack.elasticsearch_url)) as opened:
        yield opened


@pytest.fixture
async def heard(client: AsyncElasticsearch, unique_name: Callable[[str], str]) -> AsyncIterator[Heard]:
    declared = Elasticsearch(
        index=unique_name("a"), mappings={"properties": FIELDS}, settings={"number_of_replicas": 0}
    )
    made = Heard(declared, client)
    await made.sink.prepare()
    yield made
    await client.indices.delete(index=declared.physical, ignore_unavailable=True)
    with contextlib.suppress(NotFoundError):
        await client.indices.delete_index_template(name=f"tidegate-{declared.physical}")


def document(number: int, **changed: Any) -> Upsert:
    return Upsert(f"d{number}", number, {"key": f"d{number}", "n": number, **changed})


async def stored(heard: Heard) -> set[str]:
    await heard.sink.refresh()
    found = await heard.client.search(index=heard.declared.name, size=1000, source=False)
    return {hit["_id"] for hit in found["hits"]["hits"]}


async def test_created_updated_stale_and_refused_in_one_request(heard: Heard) -> None:
    """Case 86: 201, 200, 409 and the kinds of 400, side by side, each from the server itself."""
    await heard.apply(document(7))
    heard.answers.clear()

    applied = await heard.apply(
        document(1),
        document(7),
        Upsert("d7", 6, {"n": 6}),
        document(2, n="many"),
        document(3, unknown=1),
        document(4, inner=5),
        document(5, key="x" * 40_000),
    )

    assert heard.outcomes == [
        (409, "version_conflict_engine_exception"),
        (400, "document_parsing_exception"),
        (400, "strict_dynamic_mapping_exception"),
        (400, "document_parsing_exception"),
        (400, "document_parsing_exception"),
    ]
    assert applied.stale_at == {2}
    assert [refusal.index for refusal in applied.refused] == [3, 4, 5, 6]
    assert {refusal.reason for refusal in applied.refused} == {Reason.INVALID_DOCUMENT}
    assert len(heard.answers) == 1, "nothing of it is worth sending again"
    assert await stored(heard) == {"d1", "d7"}


async def test_flood_stage_block_is_waited_for(heard: Heard) -> None:
    """Case 86, G5: a disk above its flood stage answers 429 with a block: asked again, no document's fault."""
    await heard.block(read_only_allow_delete=True)

    with pytest.raises(Transient, match="429 cluster_block_exception"):
        await heard.apply(document(1))
    assert heard.outcomes == [(429, "cluster_block_exception")] * 4
    assert len(heard.clock.slept) == 3

    await heard.block(read_only_allow_delete=None)
    assert await heard.apply(document(1)) == Applied()


async def test_read_only_index_is_transient(heard: Heard) -> None:
    """Case 86: 403 with a block is somebody's decision that ends, not a missing right."""
    await heard.block(read_only=True)

    with pytest.raises(Transient, match="403 cluster_block_exception"):
        await heard.apply(document(1))
    assert heard.outcomes == [(403, "cluster_block_exception")]

    await heard.block(read_only=None)
    assert await heard.apply(document(1)) == Applied()


async def test_missing_and_closed_index_are_transient(heard: Heard) -> None:
    """Case 86: 404, and 400 that is no document's fault."""
    await heard.client.indices.close(index=heard.declared.physical)
    with pytest.raises(Transient, match="400 index_closed_exception"):
        await heard.apply(document(1))
    await heard.client.indices.delete(index=heard.declared.physical)
    with pytest.raises(Transient, match="run 'tidegate migrate'"):
        await heard.apply(document(1))

    assert heard.outcomes == [(400, "index_closed_exception"), (404, "index_not_found_exception")]


@pytest.mark.timeout(120)
async def test_more_than_the_server_has_room_for_is_rejected_and_comes_to_an_end(heard: Heard) -> None:
    """Case 87, on the real server: a request beyond its room for indexing is rejected with 429 by its thread pools'
    guard. Asked four times, with waits in between, then given back to the pipeline; fewer at once from then on."""
    roomy = Heard(replace(heard.declared, max_request_bytes=80_000_000), heard.client)
    # A tenth of the heap is what the server takes at once; the stack's has 512 MB.
    text = "x" * 9_000_000

    with pytest.raises(Transient, match=r"put off 7 of 7 writes: 429 es_rejected_execution_exception"):
        await roomy.apply(*(document(n, text=text) for n in range(7)))

    assert [answer.status for answer in roomy.answers] == [429] * 4
    assert roomy.sink.request_limit == 1
    bounds = [(0.05, 0.1), (0.2, 0.4), (0.8, 1.6)]
    assert all(low <= slept <= high for slept, (low, high) in zip(roomy.clock.slept, bounds, strict=True))
    assert await stored(heard) == set()


async def test_one_bad_version_would_fail_the_whole_request(heard: Heard) -> None:
    """Why versions are checked before sending: the server refuses the good neighbour as well, and nobody's document is
    to blame."""
    lines = [heard.sink.encode(document(1)), heard.sink.encode(document(2)).replace(b'"version":2', b'"version":-2')]

    with pytest.raises(Misconfigured, match="bulk request not understood: 400 action_request_validation_exception"):
        await heard.sink.apply(lines)
    for version in (-1, 2**63):
        with pytest.raises(InvalidDocument, match="version"):
            heard.sink.encode(Upsert("d", version, {"n": 1}))

    assert await stored(heard) == set()


async def test_long_ids_are_kept_apart_and_found(heard: Heard) -> None:
    """600 bytes: the server would refuse the whole request. Hashed, each is its own document, newest wins, a delete
    deletes, and a reader finds it by the id that the declaration computes."""
    first, second = "é" * 299 + "ab", "é" * 299 + "ac"
    assert len(first.encode()) == 600
    await heard.apply(Upsert(first, 5, {"key": "first", "n": 1}), Upsert(second, 5, {"key": "second", "n": 2}))

    applied = await heard.apply(Upsert(first, 4, {"key": "first", "n": 0}), Delete(second, 6))

    assert applied.stale_at == {0}
    await heard.sink.refresh()
    for document_id, keys in ((first, ["first"]), (second, [])):
        found = await heard.client.search(
            index=heard.declared.name, query={"ids": {"values": [heard.declared.stored_id(document_id)]}}
        )
        assert [hit["_source"]["key"] for hit in found["hits"]["hits"]] == keys


async def test_proxy_with_a_lower_limit_than_ours_gets_halves(heard: Heard, stack: StackAddresses) -> None:
    """Case 93, through a real proxy that takes a megabyte at most: 413 until it fits; the one document that never fits
    is the only dead letter, and the next batch begins with what was learned."""
    async with (
        limited(stack.elasticsearch_url) as (address, refusals),
        connect(Settings(elasticsearch_url=address)) as client,
    ):
        through = Heard(heard.declared, client)
        texts = ["x" * 100_000] * 20
        texts[7] = "x" * 1_500_000

        applied = await through.apply(*(document(n, text=text) for n, text in enumerate(texts)))

        assert [(each.index, each.reason) for each in applied.refused] == [(7, Reason.TOO_LARGE)]
        learned = refusals.count(413)
        await through.apply(*(document(n, text="y" * 100_000) for n in range(30, 50)))

    assert learned == refusals.count(413)
    assert await stored(heard) == {f"d{n}" for n in [*range(20), *range(30, 50)] if n != 7}


@contextlib.asynccontextmanager
async def limited(address: str) -> AsyncIterator[tuple[str, Sequence[int]]]:
    """A proxy to `address` that answers 413 to what is longer than a megabyte, as proxies do; and what it answered."""
    answered: list[int] = []

    async def carry(request: web.Request) -> web.StreamResponse:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            answered.append(413)
            raise
        headers = {name: value for name, value in request.headers.items() if name.lower() in ("content-type", "accept")}
        async with session.request(request.method, address + request.path_qs, data=body, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in ("Content-Type", "X-Elastic-Product")}
            answered.append(answer.status)
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    application = web.Application(client_max_size=1024 * 1024)
    application.router.add_route("*", "/{path:.*}", carry)
    runner = web.AppRunner(application)
    async with ClientSession() as session:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}", answered
        finally:
            await runner.cleanup()
