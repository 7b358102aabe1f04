"""A declaration against a real index: found at start, refused whole, nothing half done; template and aliases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch, BadRequestError, NotFoundError

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import connect
from projections.sink import Applied
from projections.writes import Upsert
from tidegate.stack.names import StackAddresses
from tidegate_kernel.errors import Misconfigured, NeedsRebuild
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

FIELDS: Mapping[str, Any] = {
    "order_id": {"type": "keyword"},
    "cents": {"type": "long"},
    "note": {"type": "text", "analyzer": "whitespace"},
    "placed_at": {"type": "date"},
    "address": {"properties": {"city": {"type": "keyword"}}},
}


@pytest.fixture
def settings(stack: StackAddresses) -> Settings:
    return Settings(elasticsearch_url=stack.elasticsearch_url)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[AsyncElasticsearch]:
    async with connect(settings) as opened:
        yield opened


@pytest.fixture
async def orders(
    unique_name: Callable[[str], str], client: AsyncElasticsearch, settings: Settings
) -> AsyncIterator[Elasticsearch]:
    """A declaration whose index is there; index and template go with the test."""
    declared = with_fields(Elasticsearch(index=unique_name("orders"), mappings={"properties": {}}), FIELDS)
    await prepare(declared, settings)
    yield declared
    for name in (declared.physical, f"{declared.physical}-000002", declared.name):
        # An alias of that name is no index.
        if not await client.indices.exists_alias(name=name):
            await client.indices.delete(index=name, ignore_unavailable=True)
    try:
        await client.indices.delete_index_template(name=template_of(declared))
    except NotFoundError:
        return


def with_fields(declared: Elasticsearch, fields: Mapping[str, Any], **rules: Any) -> Elasticsearch:
    return replace(declared, mappings={"properties": dict(fields), **rules}, settings={"number_of_replicas": 0})


def template_of(declared: Elasticsearch) -> str:
    return f"tidegate-{declared.physical}"


async def prepare(declared: Elasticsearch, settings: Settings) -> None:
    async with declared.open(settings) as sink:
        await sink.prepare()


async def check(declared: Elasticsearch, settings: Settings) -> None:
    async with declared.open(settings) as sink:
        await sink.check()


@pytest.mark.parametrize(
    "changed,told",
    [
        ({"cents": {"type": "keyword"}}, 'field \'cents\' is {"type":"long"}, declared {"type":"keyword"}'),
        ({"note": {"type": "text"}}, 'field \'note\' is {"analyzer":"whitespace","type":"text"}'),
        ({"placed_at": {"type": "date", "format": "epoch_second"}}, 'field \'placed_at\' is {"type":"date"}'),
        ({"cents": {"type": "long", "index": False}}, 'declared {"index":false,"type":"long"}'),
        ({"order_id": {"type": "keyword", "fields": {"text": {"type": "text"}}}}, "field 'order_id'"),
        ({"address": {"properties": {"city": {"type": "text"}}}}, "field 'address.city'"),
        (
            {"address": {"properties": {"city": {"type": "keyword"}, "zip": {"type": "keyword"}}}},
            "'address.zip' is not",
        ),
        ({"added": {"type": "long"}}, 'field \'added\' is not there, declared {"type":"long"}'),
    ],
)
async def test_any_difference_is_found_and_nothing_is_touched(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch, changed: dict[str, Any], told: str
) -> None:
    """Case 94 and its kind: a mapping that is half of the declared one makes documents that readers find by half of the
    rules. Start and migrate refuse, say all that differs, and leave index and template as they were."""
    other = with_fields(orders, {**FIELDS, **changed, "cents2": {"type": "byte"}})
    before = [await client.indices.get(index=orders.physical), await template(client, orders)]

    for call in (check, prepare):
        with pytest.raises(NeedsRebuild, match="needs rebuild") as refused:
            await call(other, settings)
        assert told in str(refused.value)
        assert "field 'cents2' is not there" in str(refused.value)
        assert len(refused.value.differences) == len({*changed} | {"cents2"})

    assert [await client.indices.get(index=orders.physical), await template(client, orders)] == before


async def template(client: AsyncElasticsearch, declared: Elasticsearch) -> Any:
    return (await client.indices.get_index_template(name=template_of(declared))).body


async def test_field_that_is_declared_no_more_needs_a_rebuild(orders: Elasticsearch, settings: Settings) -> None:
    """Strict means strict: an event of old code would put it into documents that nobody declares so."""
    fewer = with_fields(orders, {name: field for name, field in FIELDS.items() if name != "note"})

    with pytest.raises(NeedsRebuild, match=r"field 'note' is .*, not declared"):
        await check(fewer, settings)


async def test_index_opened_to_unknown_fields_by_hand_is_found(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 94: whoever opened it may have closed it again too late."""
    await client.indices.put_mapping(index=orders.physical, dynamic="true")

    with pytest.raises(NeedsRebuild, match=r"'dynamic' is \"true\", declared \"strict\""):
        await check(orders, settings)


async def test_other_analysis_under_the_same_names_is_found(
    unique_name: Callable[[str], str], settings: Settings, client: AsyncElasticsearch
) -> None:
    """The mapping is the same to the letter; what a reader finds is not."""
    analysis = {"analyzer": {"own": {"type": "standard"}}}
    fields = {"note": {"type": "text", "analyzer": "own"}}
    declared = Elasticsearch(
        index=unique_name("n"),
        mappings={"properties": fields},
        settings={"number_of_replicas": 0, "analysis": analysis},
    )
    try:
        await prepare(declared, settings)
        await check(declared, settings)
        other = {"analyzer": {"own": {"type": "standard", "max_token_length": 5}}}

        with pytest.raises(NeedsRebuild, match="'analysis' is"):
            await check(replace(declared, settings={"number_of_replicas": 0, "analysis": other}), settings)
    finally:
        await client.indices.delete(index=declared.physical, ignore_unavailable=True)
        await client.indices.delete_index_template(name=template_of(declared))


async def test_defaults_spelled_out_are_no_difference(orders: Elasticsearch, settings: Settings) -> None:
    """Elasticsearch leaves out what is its default and rewrites values: that must not stop a job for ever."""
    spelled = {
        "order_id": {"type": "keyword", "doc_values": True, "index": "true"},
        "cents": {"type": "long", "index": True},
        "note": {"type": "text", "analyzer": "whitespace", "search_analyzer": "whitespace"},
        "placed_at": {"type": "date", "format": "strict_date_optional_time||epoch_millis"},
        "address.city": {"type": "keyword"},
    }

    await check(with_fields(orders, spelled), settings)


async def test_new_field_is_added_where_the_developer_says_so(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """`new_fields="add"`: documents that are there may lack it. It is migrate that adds it, never a start; a release
    without it, in a roll or rolled back, still fits."""
    wider = replace(with_fields(orders, {**FIELDS, "city": {"type": "keyword"}}), new_fields="add")
    with pytest.raises(Misconfigured, match=r"field 'city' is not there.*run 'tidegate migrate'"):
        await check(wider, settings)

    async with wider.open(settings) as sink:
        await sink.prepare()
        applied = await sink.apply([sink.encode(Upsert("o1", 1, {"order_id": "o1", "city": "Riga"}))])

    assert applied == Applied()
    await check(replace(orders, new_fields="add"), settings)
    with pytest.raises(NeedsRebuild):
        await check(orders, settings)


async def test_changed_field_is_refused_also_where_new_ones_are_added(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Never half of it: the new field must not come without the changed one."""
    other = replace(
        with_fields(orders, {**FIELDS, "cents": {"type": "byte"}, "new": {"type": "long"}}), new_fields="add"
    )

    with pytest.raises(NeedsRebuild, match="'cents'"):
        await prepare(other, settings)

    found = await client.indices.get_mapping(index=orders.physical)
    assert "new" not in found[orders.physical]["mappings"]["properties"]


async def test_index_of_an_older_release_gets_the_time_of_tombstones_without_a_rebuild(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """A field that is ours, and on tombstones alone, is no reason to fill an index anew."""
    await client.indices.delete(index=orders.physical)
    await client.indices.delete_index_template(name=template_of(orders))
    older = {name: field for name, field in orders.all_mappings["properties"].items() if name != "tg_deleted_at"}
    await client.indices.create(
        index=orders.physical, mappings={"dynamic": "strict", "properties": older}, settings={"number_of_replicas": 0}
    )
    with pytest.raises(Misconfigured, match=r"'tg_deleted_at'.*tidegate migrate"):
        await check(orders, settings)

    await prepare(orders, settings)

    await check(orders, settings)


async def test_index_made_by_somebody_else_has_our_mapping(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """A rollover, or a hand that creates it again: the template makes it strict, and start finds no difference but the
    aliases, which only migrate or a swap gives."""
    await client.indices.delete(index=orders.physical)
    await client.indices.create(index=orders.physical)
    await client.indices.create(index=f"{orders.physical}-000002")

    for name in (orders.physical, f"{orders.physical}-000002"):
        with pytest.raises(BadRequestError, match="strict_dynamic_mapping_exception"):
            await client.index(index=name, document={"unknown": 1})
    with pytest.raises(Misconfigured, match=r"alias .* is not there; run 'tidegate migrate'"):
        await check(orders, settings)
    await prepare(orders, settings)
    await check(orders, settings)


async def test_writing_to_a_missing_index_makes_none(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Somebody's script, or an index deleted under a writer: what the server would make up has no mapping, and takes
    the place of our alias."""
    await client.indices.delete(index=orders.physical)

    for name in (orders.physical, orders.write_alias):
        with pytest.raises(NotFoundError):
            await client.index(index=name, document={"order_id": "o1"})
    assert not await client.indices.exists(index=orders.physical)


async def test_start_without_the_template_names_the_remedy(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """It protects the next index, so nobody would miss it until then."""
    await client.indices.delete_index_template(name=template_of(orders))

    with pytest.raises(Misconfigured, match=r"index template 'tidegate-.*' is not there; run 'tidegate migrate'"):
        await check(orders, settings)
    await prepare(orders, settings)
    await check(orders, settings)


async def test_readers_alias_of_two_indexes_is_refused(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Readers would see each document twice; only a swap may move an alias, in one request."""
    other = f"{orders.physical}-000002"
    await client.indices.create(index=other)
    await client.indices.put_alias(index=other, name=orders.name)

    with pytest.raises(Misconfigured, match=f"alias '{orders.name}' is of several indexes, .*{other}"):
        await check(orders, settings)


async def test_alias_that_shows_tombstones_is_refused(
    orders: Elasticsearch, settings: Settings, client: AsyncElasticsearch
) -> None:
    """Case 90: what was deleted would be back for readers."""
    await client.indices.put_alias(index=orders.physical, name=orders.name, filter={"match_all": {}})

    with pytest.raises(Misconfigured, match="without its tombstones"):
        await check(orders, settings)
    await prepare(orders, settings)
    await check(orders, settings)
