"""Tombstones in a real table leave by rule; what is newer than one stays, and nothing that it hid is seen again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.clickhouse_sink import ClickHouseSink
from projections.writes import Delete, Upsert, Write
from tidegate.jobs.tombstones import KeptSink, TombstoneUpkeep
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import NeedsRebuild, Transient
from tidegate_kernel.event import JobId
from tidegate_kernel.kafka_retention import Retention
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

DAY = timedelta(days=1)
LONG_AGO, LATELY = 10 * DAY, 3 * DAY


class Ago(SystemClock):
    """A host's clock at some time before now."""

    def __init__(self, ago: timedelta) -> None:
        self._ago = ago

    def now(self) -> datetime:
        return datetime.now(UTC) - self._ago


class Table:
    """A table, written to by hosts of different times. A row lies in the partition of its `part`, a tombstone in 0."""

    def __init__(self, declared: ClickHouse, connection: Connection) -> None:
        self.declared, self.connection = declared, connection
        self.physical = declared.versioned_table.physical

    def sink(self, ago: timedelta = timedelta(0)) -> ClickHouseSink:
        return ClickHouseSink(self.declared.versioned_table, self.declared.rows, self.connection, Ago(ago))

    async def write(self, *writes: Write, ago: timedelta = timedelta(0)) -> None:
        sink = self.sink(ago)
        await sink.apply([sink.encode(write) for write in writes])

    async def purge(self, *, ago: timedelta = 9 * DAY, most: int = 100) -> int:
        return await self.sink().purge(datetime.now(UTC) - ago, most)

    async def command(self, statement: str) -> None:
        await (await self.connection.client()).command(statement)

    async def keep_apart(self) -> None:
        """No merge takes place by itself. (With merges stopped, deletes would wait as well.)"""
        await self.command(
            f"ALTER TABLE {self.physical} MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1, "
            "max_bytes_to_merge_at_min_space_in_pool = 1"
        )

    async def stored(self) -> list[tuple[Any, ...]]:
        """Key, version and tombstone or not of every row, merged or not."""
        return await self._rows(f"SELECT id, tg_version, tg_deleted FROM {self.physical} ORDER BY ALL")

    async def shown(self) -> dict[str, int]:
        return dict(await self._rows(f"SELECT toString(id), v FROM {self.declared.name}"))

    async def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in (await (await self.connection.client()).query(query)).result_rows]


@pytest.fixture
async def make(stack: StackAddresses, unique_name: Callable[[str], str]) -> AsyncIterator[Callable[..., Any]]:
    made: list[Table] = []

    async def make(key_type: str = "String", **changed: Any) -> Table:
        name = unique_name("o").replace("-", "_")
        columns = {"id": key_type, "v": "UInt64", "part": "UInt8"}
        declared = ClickHouse(table=name, columns=columns, order_by=("id",), partition_by="part")
        declared = replace(declared, **changed)
        made.append(Table(declared, Connection(Settings(clickhouse_url=stack.clickhouse_url))))
        await made[-1].sink().prepare()
        return made[-1]

    yield make
    for table in made:
        await table.command(f"DROP VIEW IF EXISTS {table.declared.name}")
        await table.command(f"DROP TABLE IF EXISTS {table.physical}")
        await table.connection.close()


@pytest.fixture
async def table(make: Callable[..., Awaitable[Table]]) -> Table:
    return await make()


def state(key: str, version: int, *, part: int = 1) -> Upsert:
    return Upsert(key, version, {"id": key, "v": version, "part": part})


class Between:
    """Runs `act` right before each delete of a purge, and notes what readers see after it."""

    def __init__(self, table: Table, act: Callable[[], Awaitable[None]]) -> None:
        self._table, self._act = table, act
        self.deletes: list[str] = []
        self.seen: list[dict[str, int]] = []

    async def install(self, monkeypatch: pytest.MonkeyPatch) -> Between:
        client = await self._table.connection.client()
        plain = client.command

        async def command(statement: str, **options: Any) -> Any:
            if not statement.startswith("DELETE"):
                return await plain(statement, **options)
            await self._act()
            self.deletes.append(statement)
            answer = await plain(statement, **options)
            self.seen.append(await self._table.shown())
            return answer

        monkeypatch.setattr(client, "command", command)
        return self


async def nothing() -> None:
    """Nothing happens in between."""


@pytest.fixture
async def job(pool: Pool) -> JobId:
    number: int = await pool.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('tests', 'search', 'v1') RETURNING id"
    )
    return JobId(number)


async def test_clickhouse_lets_go_of_tombstones_by_the_rule(table: Table, pool: Pool, job: JobId) -> None:
    """Case 90: a week of records in segments of a day, a day for clocks: ten days are enough, three are not."""
    await table.write(state("live", 1), state("old", 5), state("young", 5))
    await table.write(Delete("old", 6), ago=LONG_AGO)
    await table.write(Delete("young", 6), ago=LATELY)
    metrics = Metrics()

    async def retention(topics: Collection[str]) -> Mapping[str, Retention]:
        return {topic: Retention(7 * DAY, segment=DAY) for topic in topics}

    kept = KeptSink(job, "search", table.declared.name, ["orders"], table.sink())
    await TombstoneUpkeep(pool, SystemClock(), kept, read_retention=retention, holder="w1", metrics=metrics).round()

    assert await table.stored() == [("live", 1, 0), ("young", 5, 0), ("young", 6, 1)]
    assert metrics.registry.get_sample_value("tidegate_tombstones_purged_total", {"job": "search"}) == 1


async def test_older_upsert_that_came_before_the_purge_goes_with_the_tombstone(table: Table) -> None:
    """Case 90, G3: a late older row lies beside the tombstone, and in another partition no merge ever removes it."""
    await table.write(Delete("k", 6), ago=LONG_AGO)
    await table.write(state("k", 4, part=1), state("k", 5, part=2))

    assert await table.purge() == 1

    assert await table.shown() == {}
    assert await table.stored() == []


async def test_newer_row_that_races_with_the_purge_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: it comes when the tombstone was found and is not deleted yet, into each partition there is."""
    await table.write(state("k", 5))
    await table.write(Delete("k", 6), ago=LONG_AGO)

    async def come_back() -> None:
        await table.write(state("k", 7, part=0), state("k", 8, part=1), state("k", 9, part=3))

    between = await Between(table, come_back).install(monkeypatch)
    await table.purge()

    assert len(between.deletes) == 2
    assert between.seen == [{"k": 9}, {"k": 9}]
    await table.command(f"OPTIMIZE TABLE {table.physical} FINAL")
    assert await table.stored() == [("k", 7, 0), ("k", 8, 0), ("k", 9, 0)]


async def test_older_row_that_races_with_the_purge_goes_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rule none comes; one that does all the same, while the tombstone is still there, has to lose to it."""
    await table.write(Delete("k", 6), ago=LONG_AGO)

    await Between(table, lambda: table.write(state("k", 5))).install(monkeypatch)
    await table.purge()

    assert await table.stored() == []


async def test_what_a_tombstone_hides_goes_before_it(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: a delete comes to one part after the other. Killed between the two, the tombstone still stands."""
    await table.write(state("k", 4, part=1), state("k", 5, part=2))
    await table.write(Delete("k", 6), ago=LONG_AGO)
    calls = 0

    async def killed_at_the_second() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Transient("killed")

    between = await Between(table, killed_at_the_second).install(monkeypatch)
    with pytest.raises(Transient):
        await table.purge()

    assert between.seen == [{}]
    assert await table.stored() == [("k", 6, 1)]
    assert await table.purge() == 1
    assert await table.stored() == []


async def test_tombstone_that_hides_nothing_is_one_delete(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation goes through all parts: as a rule merges have removed what was older."""
    await table.write(*(Delete(f"k{n}", 6) for n in range(5)), ago=LONG_AGO)
    between = await Between(table, nothing).install(monkeypatch)

    assert [await table.purge(most=3), await table.purge(most=3)] == [3, 2]

    assert len(between.deletes) == 2


async def test_tombstone_that_was_written_again_counts_from_then(table: Table) -> None:
    """The delete was produced anew, perhaps with all that was before it: Elasticsearch keeps the later time as well."""
    await table.keep_apart()
    await table.write(state("k", 5))
    await table.write(Delete("k", 6), ago=LONG_AGO)
    await table.write(Delete("k", 6), ago=LATELY)

    await table.purge()

    assert await table.stored() == [("k", 6, 1)]


async def test_tombstone_without_a_time_stays(table: Table) -> None:
    """Put in by hand: nobody knows how old it is."""
    await table.command(f"INSERT INTO {table.physical} (id, tg_version, tg_deleted) VALUES ('k', 6, 1)")

    assert await table.purge() == 0


@pytest.mark.parametrize("later", ["document", "tombstone"])
async def test_of_equal_versions_what_readers_see_stays(make: Callable[..., Awaitable[Table]], later: str) -> None:
    """The same event, projected by newer code: as a document now, or as a delete. Neither comes up again by a purge."""
    table = await make(partition_by=None)
    await table.keep_apart()
    writes: list[Write] = [Delete("k", 6), state("k", 6)]
    for write in writes if later == "document" else reversed(writes):
        await table.write(write, ago=LONG_AGO)

    while await table.purge():
        pass

    assert await table.stored() == ([("k", 6, 0)] if later == "document" else [])
    assert await table.shown() == ({"k": 6} if later == "document" else {})


@pytest.mark.parametrize(
    "key_type,keys",
    [
        ("String", ["it's", "a\\", "\\'", "a\0b", "%s {x:String} %(y)s", "new\nline", "ü日", "--", "1"]),
        ("LowCardinality(String)", ["it's", "b"]),
        ("FixedString(3)", ["abc", "'\\\0"]),
        ("UUID", [str(UUID(int=n)) for n in (1, 2**127)]),
        ("Int8", ["-128", "0", "127"]),
        ("UInt64", ["0", str(2**64 - 1)]),
        ("Enum8('it\\'s' = -1, 'b' = 2)", ["it's", "b"]),
        ("Date", ["1970-01-01", "2149-06-06"]),
    ],
)
async def test_keys_of_all_types_are_found_again(
    make: Callable[..., Awaitable[Table]], key_type: str, keys: Sequence[str]
) -> None:
    """They stand in the statement: one that is quoted wrongly would be another's, or none."""
    table = await make(key_type)
    of_key: Callable[[str], Any] = int if "Int" in key_type else str
    await table.write(*(Upsert(key, 5, {"id": of_key(key), "v": 5, "part": 1}) for key in keys))
    await table.write(*(Delete(key, 6) for key in keys[:-1]), ago=LONG_AGO)

    assert await table.purge() == len(keys) - 1

    assert len(await table.stored()) == 1
    assert list((await table.shown()).values()) == [5]


async def test_a_thousand_long_keys_are_one_statement(table: Table) -> None:
    """Longer than the server takes by default: 600 bytes a key, three times."""
    keys = [f"{n:0600d}" for n in range(1000)]
    await table.write(*(state(key, 5) for key in keys))
    await table.write(*(Delete(key, 6) for key in keys), ago=LONG_AGO)

    assert await table.purge(most=1000) == 1000
    assert await table.stored() == []


async def test_table_without_deletes_is_asked_nothing(make: Callable[..., Awaitable[Table]]) -> None:
    """Where every event is a row a Delete is refused: there is nothing to find, in the largest tables there are."""
    table = await make(order_by=("id", "v"))
    await table.command(f"DROP TABLE {table.physical}")

    assert await table.purge() == 0


@pytest.mark.parametrize("seed", range(3))
async def test_purge_among_inserts_and_merges_shows_the_newest(table: Table, seed: int) -> None:
    """G3: rows come and parts merge while tombstones leave; readers see what they would without."""
    dice = random.Random(seed)
    keys = [f"k{n}" for n in range(12)]
    await table.write(*(state(key, 5, part=dice.randint(0, 2)) for key in keys))
    await table.write(*(Delete(key, 6) for key in keys), ago=LONG_AGO)
    back = {key: version for key in keys if (version := dice.choice([0, 7, 8]))}

    async def come_back() -> None:
        for key, version in back.items():
            await table.write(state(key, version, part=dice.randint(0, 2)))

    async def merge() -> None:
        for _ in range(5):
            await table.command(f"OPTIMIZE TABLE {table.physical} FINAL")

    async def purge() -> None:
        while await table.purge(most=4):
            pass

    await asyncio.gather(come_back(), merge(), purge())
    await purge()

    assert await table.shown() == back
    left = await table.stored()
    assert not [row for row in left if row[2]]
    assert {key for key, _, _ in left} == set(back)


async def test_table_of_before_needs_a_rebuild(table: Table) -> None:
    """Without the time of a tombstone nobody knows when it may go: told at the start, by name."""
    await table.command(f"ALTER TABLE {table.physical} DROP COLUMN tg_deleted_at")

    with pytest.raises(NeedsRebuild) as caught:
        await table.sink().check()

    assert list(caught.value.differences) == ["column 'tg_deleted_at' is missing, declared DateTime('UTC')"]
