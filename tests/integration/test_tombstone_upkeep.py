"""Tombstones in a real index leave by rule, never by a clock of the engine; what is newer than one stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch, NotFoundError

from projections.elasticsearch import Elasticsearch
from projections.elasticsearch_sink import ElasticsearchSink, connect
from projections.sink import Applied
from projections.writes import Delete, Upsert, Write
from tidegate.jobs import tombstones as tombstones_module
from tidegate.jobs.tombstones import KeptSink, TombstoneUpkeep
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import JobId
from tidegate_kernel.kafka_retention import Retention
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

DAY = timedelta(days=1)
WEEK = {"orders": Retention(7 * DAY, segment=DAY)}
LONG_AGO, LATELY = 10 * DAY, 3 * DAY


class Ago(SystemClock):
    """A host's clock at some time before now."""

    def __init__(self, ago: timedelta) -> None:
        self._ago = ago

    def now(self) -> datetime:
        return datetime.now(UTC) - self._ago


class Index:
    """An index, written to by hosts of different times."""

    def __init__(self, declared: Elasticsearch, client: AsyncElasticsearch) -> None:
        self.declared, self.client = declared, client

    def sink(self, ago: timedelta = timedelta(0)) -> ElasticsearchSink:
        return ElasticsearchSink(self.declared, self.client, Ago(ago))

    async def write(self, *writes: Write, ago: timedelta = timedelta(0)) -> Applied:
        sink = self.sink(ago)
        return await sink.apply([sink.encode(write) for write in writes])

    async def stored(self) -> set[str]:
        """Ids of all that is in the index, tombstones too."""
        return await self._ids(self.declared.physical)

    async def shown(self) -> set[str]:
        return await self._ids(self.declared.name)

    async def reopen(self) -> None:
        """The engine remembers its last deletes in memory, for a time that nobody is promised: not any more."""
        await self.client.indices.close(index=self.declared.physical)
        await self.client.indices.open(index=self.declared.physical, wait_for_active_shards="1")

    async def _ids(self, name: str) -> set[str]:
        await self.client.indices.refresh(index=self.declared.physical)
        found = await self.client.search(index=name, size=1000, source=False)
        return {hit["_id"] for hit in found["hits"]["hits"]}


@pytest.fixture
async def index(stack: StackAddresses, unique_name: Callable[[str], str]) -> AsyncIterator[Index]:
    declared = Elasticsearch(
        index=unique_name("orders"),
        mappings={"properties": {"n": {"type": "long"}}},
        # No memory of deletes in the engine at all: what holds an older event off is ours alone.
        settings={"number_of_replicas": 0, "gc_deletes": "0s"},
    )
    async with connect(Settings(elasticsearch_url=stack.elasticsearch_url)) as client:
        opened = Index(declared, client)
        await opened.sink().prepare()
        yield opened
        await client.indices.delete(index=declared.physical)
        with contextlib.suppress(NotFoundError):
            await client.indices.delete_index_template(name=f"tidegate-{declared.physical}")


@pytest.fixture
async def job(pool: Pool) -> JobId:
    number: int = await pool.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('tests', 'search', 'v1') RETURNING id"
    )
    return JobId(number)


class Upkeeps:
    """Makes the upkeep of workers, and counts what they removed."""

    def __init__(self, pool: Pool, job: JobId, index: Index) -> None:
        self._pool, self._job, self._index = pool, job, index
        self.metrics = Metrics()

    def of(self, holder: str = "w1", retention: Mapping[str, Retention] = WEEK) -> TombstoneUpkeep:
        async def read(topics: Collection[str]) -> Mapping[str, Retention]:
            return {topic: retention[topic] for topic in topics}

        sink = KeptSink(self._job, "search", self._index.declared.name, ["orders"], self._index.sink())
        return TombstoneUpkeep(
            self._pool, SystemClock(), sink, read_retention=read, holder=holder, metrics=self.metrics
        )

    @property
    def purged(self) -> float:
        return self.metrics.registry.get_sample_value("tidegate_tombstones_purged_total", {"job": "search"}) or 0.0


@pytest.fixture
def upkeeps(pool: Pool, job: JobId, index: Index) -> Upkeeps:
    return Upkeeps(pool, job, index)


def upsert(document_id: str, version: int) -> Upsert:
    return Upsert(document_id, version, {"n": version})


async def test_tombstone_leaves_after_retention_and_no_sooner(index: Index, upkeeps: Upkeeps) -> None:
    """Kafka keeps a week of records in segments of a day, a day more is for clocks: ten days are enough, three not."""
    await index.write(upsert("live", 1), Delete("old", 6), ago=LONG_AGO)
    await index.write(Delete("young", 6), ago=LATELY)

    await upkeeps.of().round()

    assert await index.stored() == {"live", "young"}
    assert upkeeps.purged == 1


async def test_document_that_came_back_is_not_purged(index: Index, upkeeps: Upkeeps) -> None:
    """A newer upsert took the tombstone's place; also where no refresh has shown it to a search yet."""
    await index.write(Delete("back", 6), ago=LONG_AGO)
    await index.stored()
    await index.write(upsert("back", 7))

    await upkeeps.of().round()

    assert await index.shown() == {"back"}


async def test_delete_with_its_own_version_removes_no_newer_document(index: Index) -> None:
    """The document comes between the search and the delete: by its version it stays (G3)."""
    await index.write(Delete("back", 6), ago=LONG_AGO)
    sink = index.sink()
    taken: list[bytes] = []

    async def overtaken(body: bytes) -> Any:
        taken.append(body)
        await index.write(upsert("back", 7))
        return await posted(body)

    posted, sink._post_deletes = sink._post_deletes, overtaken  # type: ignore[method-assign]  # the race, made certain

    assert await sink.purge(datetime.now(UTC), 100) == 0
    assert taken == [b'{"delete":{"_id":"back","version":6,"version_type":"external_gte"}}\n']
    assert await index.shown() == {"back"}


async def test_undecided_letter_holds_tombstones_back(index: Index, upkeeps: Upkeeps, pool: Pool, job: JobId) -> None:
    """Its replay in a month brings an event from before the delete; once it is decided nothing holds them any more."""
    await index.write(Delete("a", 6), ago=LONG_AGO)
    await pool.execute(
        """
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", value, reason, error_class, error_message, fingerprint,
            attempts, state, first_failed_at
        )
        VALUES (
            gen_random_uuid(), $1, 'orders', gen_random_uuid(), 0, 1, 'x', 'rejected', 'Rejected', '', '', 1, 'dead',
            now() - interval '5 days'
        )
        """,
        job,
    )
    await upkeeps.of().round()
    assert await index.stored() == {"a"}

    await pool.execute("UPDATE tidegate.dead_letter SET state = 'resolved', decided_at = now()")
    await upkeeps.of().round()

    assert await index.stored() == set()


async def test_unfinished_backfill_holds_tombstones_back(
    index: Index, upkeeps: Upkeeps, pool: Pool, job: JobId
) -> None:
    """Interrupted and resumed a month later, it reads on in what it began with."""
    await index.write(Delete("a", 6), ago=LONG_AGO)
    await pool.execute(
        """
        INSERT INTO tidegate.backfill (job, source, holder, lease_until, started_at)
        VALUES ($1, 'beginning', 'x', now() - interval '4 days', now() - interval '5 days')
        """,
        job,
    )
    await upkeeps.of().round()
    assert await index.stored() == {"a"}

    await pool.execute("UPDATE tidegate.backfill SET state = 'done'")
    await upkeeps.of().round()

    assert await index.stored() == set()


async def test_compacted_topic_keeps_tombstones_for_ever(index: Index, upkeeps: Upkeeps) -> None:
    """Kafka has no last day of a key's last record."""
    await index.write(Delete("a", 6), ago=3650 * DAY)

    await upkeeps.of(retention={"orders": Retention(None, segment=DAY, is_compacted=True)}).round()

    assert await index.stored() == {"a"}


async def test_a_round_works_in_chunks_by_one_worker_at_a_time(
    index: Index, upkeeps: Upkeeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of deletes at once would stand in the way of what readers wait for; two workers would do it twice."""
    monkeypatch.setattr(tombstones_module, "_CHUNK", 4)
    await index.write(*(Delete(f"d{n}", 6) for n in range(10)), ago=LONG_AGO)
    sizes: list[int] = []
    whole = ElasticsearchSink.purge

    async def counted(sink: ElasticsearchSink, before: datetime, most: int) -> int:
        sizes.append(await whole(sink, before, most))
        return sizes[-1]

    monkeypatch.setattr(ElasticsearchSink, "purge", counted)

    await asyncio.gather(*(upkeeps.of(f"w{n}").round() for n in range(4)))

    assert sizes == [4, 4, 2]
    assert await index.stored() == set()
    assert upkeeps.purged == 10


async def test_tombstone_holds_older_events_off_beyond_the_engines_memory(index: Index) -> None:
    """Case 90: with gc_deletes 0, the segments merged and the shard opened anew the engine remembers no delete."""
    await index.write(upsert("k", 5))
    await index.write(Delete("k", 6))
    await index.stored()
    await index.client.indices.forcemerge(index=index.declared.physical, max_num_segments=1)
    await index.reopen()

    applied = await index.write(upsert("k", 4))

    assert applied.stale == 1
    assert await index.shown() == set()


async def test_purged_key_is_as_one_that_never_was(index: Index, upkeeps: Upkeeps) -> None:
    """What guarantees.md says of it: an older version would be taken again, which is why the rule waits until nothing
    can bring one but a producer that writes old versions anew."""
    await index.write(Delete("k", 6), ago=LONG_AGO)
    await upkeeps.of().round()
    await index.reopen()
    assert await index.stored() == set()

    applied = await index.write(upsert("k", 4))

    assert applied.stale == 0
    assert await index.shown() == {"k"}
