"""Every query runs on the schema that the migrations make, and the hot ones touch a handful of pages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_ROOT = Path(__file__).parents[2]
_OURS = ("tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections")
PACKAGES = sorted(
    ".".join(file.parent.relative_to(_ROOT).parts) for name in _OURS for file in (_ROOT / name).rglob("queries.sql")
)
QUERIES = [(package, name) for package in PACKAGES for name in load_queries(package)]

DAY = date(2024, 2, 28)
TOPIC_ID = UUID(int=7)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database)
    yield opened
    await opened.close()


async def test_every_query_is_prepared_by_the_server(connection: Connection) -> None:
    """A wrong column or type is found here, not at three in the morning on the road that nobody takes by day."""
    broken = {}
    for package, name in QUERIES:
        try:
            await connection.prepare(load_queries(package)[name])
        except asyncpg.PostgresError as error:
            broken[f"{package}: {name}"] = str(error)

    assert broken == {}
    assert len(QUERIES) > 20, "the files were not found"


@pytest.fixture
async def busy(connection: Connection) -> Connection:
    """A database after a while in service: 50,000 claims of one day, 4,000 positions, statistics up to date."""
    await connection.execute(
        """
        CREATE TABLE tidegate.inbox_20240228
        PARTITION OF tidegate.inbox FOR VALUES FROM ('2024-02-28') TO ('2024-02-29');
        INSERT INTO tidegate.job (service, code, claim_rule)
        SELECT 'shop', 'job-' || n, 'v1' FROM generate_series(1, 40) AS n;
        INSERT INTO tidegate.inbox (job, bucket, id)
        SELECT 1, '2024-02-28', gen_random_uuid() FROM generate_series(1, 50000);
        INSERT INTO tidegate.position (job, topic, partition, next_offset, epoch, topic_id)
        SELECT j.id, 'orders', p, 0, 1, gen_random_uuid() FROM tidegate.job AS j, generate_series(0, 99) AS p;
        ANALYZE;
        """
    )
    return connection


def _claims(count: int) -> tuple[list[date], list[UUID]]:
    return [DAY] * count, [uuid4() for _ in range(count)]


PLANNED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "claim_events": ("inbox", (1, 0, "orders", 5, 1, 0, *_claims(500), "60000", True)),
    "claim_and_settle": ("inbox", (1, 0, "orders", 5, 1, 0, *_claims(500), 500)),
    "take_over": ("consumers", (1, 0, "orders", 5, "me", 3)),
    "advance": ("consumers", (1, 0, "orders", 5, 1, 0, 500)),
    "read_position": ("consumers", (1, 0, "orders", 5)),
}


async def test_hot_queries_go_by_the_primary_key(busy: Connection) -> None:
    """Their cost must not grow with the inbox, whether planned for the values or, from the sixth call on, without."""
    slow = {}
    for mode in ("force_custom_plan", "force_generic_plan"):
        await busy.execute(f"SET plan_cache_mode = {mode}")
        for query, (package, arguments) in PLANNED.items():
            nodes = list(_nodes(await _plan(busy, load_queries(package)[query], arguments)))
            if _reads(nodes) != {("position", "Index Scan", "position_pkey")}:
                slow[query, mode] = _reads(nodes)

    assert slow == {}


async def test_duplicates_are_looked_up_by_hash(busy: Connection) -> None:
    """A batch that comes again compares 500 ids with 500 claims: pair by pair would be a quarter of a million."""
    joins = {}
    for query in ("claim_events", "claim_and_settle"):
        package, arguments = PLANNED[query]
        nodes = _nodes(await _plan(busy, load_queries(package)[query], arguments))
        joins[query] = [node["Node Type"] for node in nodes if node.get("Join Type") == "Anti"]

    assert joins == {"claim_events": ["Hash Join"], "claim_and_settle": ["Hash Join"]}


async def test_claiming_again_returns_the_places_of_what_was_known(busy: Connection) -> None:
    """The plan above is of the statement that also answers rightly: old ids at their places, new ids taken."""
    text = load_queries("inbox")["claim_events"]
    known = [row["id"] for row in await busy.fetch("SELECT id FROM tidegate.inbox LIMIT 2")]
    ids = [uuid4(), known[0], uuid4(), known[1]]

    row = await busy.fetchrow(text, 1, 0, "orders", 5, 1, 0, [DAY] * 4, ids, "60000", True)

    assert row is not None
    assert (row["fenced"], row["duplicates"]) == (True, [2, 4])
    assert await busy.fetchval("SELECT count(*) FROM tidegate.inbox") == 50_002


async def _plan(connection: Connection, query: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    plans = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {query}", *arguments))
    plan: dict[str, Any] = plans[0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _reads(nodes: list[dict[str, Any]]) -> set[tuple[str, str, str | None]]:
    """How tables are read: table, kind of scan, index."""
    scans = [node for node in nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
    return {(node["Relation Name"], node["Node Type"], node.get("Index Name")) for node in scans}
