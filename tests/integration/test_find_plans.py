"""An operator's question must not cost a scan of what a service has claimed and kept in a year."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")
TOPIC_ID = UUID(int=7)


@pytest.fixture
async def busy(database: str) -> AsyncIterator[Connection]:
    """Ten days of claims, some claims in the default partition, and 20,000 letters; statistics up to date."""
    connection = await asyncpg.connect(database)
    for day in range(1, 11):
        await connection.execute(
            f"CREATE TABLE tidegate.inbox_202402{day:02} PARTITION OF tidegate.inbox "
            f"FOR VALUES FROM ('2024-02-{day:02}') TO ('2024-02-{day + 1:02}')"
        )
    await connection.execute(
        """
        INSERT INTO tidegate.job (service, code, claim_rule)
        SELECT 'shop', 'job-' || n, 'v1' FROM generate_series(1, 4) AS n;
        INSERT INTO tidegate.inbox (job, bucket, id)
        SELECT 1 + n % 4, '2024-02-01'::date + n % 13, gen_random_uuid() FROM generate_series(1, 60000) AS n
        UNION ALL SELECT 1 + n % 4, '1970-01-01', gen_random_uuid() FROM generate_series(1, 5000) AS n;
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", key, event_id, reason, error_class, error_message,
            fingerprint, attempts
        )
        SELECT
            gen_random_uuid(), 1 + n % 4, 'orders', '00000000-0000-0000-0000-000000000007', n % 8, n,
            ('key-' || n % 5000)::bytea, 'event-' || n, 'rejected', 'Rejected', '', '', 1
        FROM generate_series(1, 20000) AS n;
        INSERT INTO tidegate.skipped_range (
            job, topic, topic_id, partition, first_offset, last_offset, cause, actor, reason
        )
        SELECT 1 + n % 4, 'orders', '00000000-0000-0000-0000-000000000007', n % 8, n, n + 5, 'skip', 'anna', '-'
        FROM generate_series(1, 5000) AS n;
        ANALYZE;
        """
    )
    yield connection
    await connection.close()


PLANNED: dict[str, tuple[Any, ...]] = {
    "claims_of_event": (1, [uuid4()]),
    "letters_of_event": (1, "event-17", None, None),
    "letters_of_key": (1, b"key-17", None),
    "letters_at_place": (1, "orders", TOPIC_ID, 1, 17),
    "skipped_range_at": (1, "orders", TOPIC_ID, 1, 17),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_questions_of_find_are_answered_by_an_index(busy: Connection, mode: str) -> None:
    """All buckets are searched, and none is read: whichever plan Postgres takes."""
    await busy.execute(f"SET plan_cache_mode = {mode}")

    read_whole = {
        query: scanned
        for query, arguments in PLANNED.items()
        if (scanned := [node["Relation Name"] for node in await _nodes(busy, query, arguments) if _reads_whole(node)])
    }

    assert read_whole == {}


async def test_an_id_is_found_in_every_kind_of_bucket(busy: Connection) -> None:
    """The plan above is of the statement that also finds: of a day, of the default partition, of ids without a day."""
    for day in ("2024-02-05", "2024-02-13", "1970-01-01"):
        row = await busy.fetchrow("SELECT job, id FROM tidegate.inbox WHERE bucket = $1::text::date LIMIT 1", day)
        assert row is not None

        [claim] = await busy.fetch(_QUERIES["claims_of_event"], row["job"], [row["id"]])

        assert (claim["id"], str(claim["bucket"])) == (row["id"], day)
        assert await busy.fetch(_QUERIES["claims_of_event"], row["job"] % 4 + 1, [row["id"]]) == []


def _reads_whole(node: dict[str, Any]) -> bool:
    relation = str(node.get("Relation Name", ""))
    return bool(node["Node Type"] == "Seq Scan") and relation.startswith(("inbox", "dead_letter", "skipped"))


async def _nodes(connection: Connection, query: str, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    plans = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {_QUERIES[query]}", *arguments))
    return list(_below(plans[0]["Plan"]))


def _below(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _below(child)
