"""What a run asks of Postgres for a batch costs what the batch is worth, whatever plan Postgres keeps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("dlq") | load_queries("dlq.runs") | load_queries("dlq.sequences")
_KEYS, _BATCH = 4000, 200
# The most that one of them has needed is 38: of a table's six indexes and the rows behind them.
_MOST_PAGES_EACH = 100

_LETTERS = """
    WITH numbers AS (SELECT n FROM generate_series($1::integer, $2::integer) AS n),
    letters AS (
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", key, value, state, reason, error_class, error_message,
            fingerprint, attempts, first_failed_at, last_failed_at
        )
        SELECT
            md5(n::text)::uuid, 1, 'orders', '00000000-0000-0000-0000-000000000007', 0, n, ('key-' || n)::bytea, '{}',
            'replaying', 'rejected', 'Rejected', 'no', 'f', 1, now(), now()
        FROM numbers
    ),
    keys AS (
        INSERT INTO tidegate.blocked_key (job, topic, key) SELECT 1, 'orders', md5('key-' || n)::uuid FROM numbers
    ),
    sequences AS (
        INSERT INTO tidegate.blocking_letter (letter, job, topic, key, turn, "offset")
        SELECT md5(n::text)::uuid, 1, 'orders', md5('key-' || n)::uuid, 1, n FROM numbers
    )
    INSERT INTO tidegate.replay_letter (replay, letter, was) SELECT 1, md5(n::text)::uuid, 'dead' FROM numbers
"""


@pytest.fixture
async def grown(database: str) -> AsyncIterator[Connection]:
    """Letters of 4,000 keys, in a database that Postgres has looked at when there was one; and plans once."""
    connection = await asyncpg.connect(database)
    await connection.execute(
        """
        INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('tests', 'notes', 'v1');
        INSERT INTO tidegate.replay (job, kind, state, digest, letters, reason, asked_by)
        VALUES (1, 'replay', 'running', '', 1, 'mended', 'anna');
        """
    )
    await connection.execute(_LETTERS, 0, 0)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute(_LETTERS, 1, _KEYS)
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    yield connection
    await connection.close()


def _asked(letters: list[UUID], keys: list[UUID]) -> Mapping[str, tuple[Any, ...]]:
    return {
        "lock_blocked_keys": (1, ["orders"], keys),
        "beginnings": (1, "orders", keys, 1),
        "keys_of_letters": (letters,),
        "open_letters": (1, letters),
        "letters_of_run": (1, letters),
        "lock_letters_of_run": (1, letters),
        "decide_letters": (1, letters, ["resolved"] * len(letters), 5),
        "take_out_letters": (letters,),
        "free_keys": (1, "orders", keys),
        "keys_behind_all": (1, "orders", keys),
    }


async def test_a_batch_costs_what_it_is_worth_whatever_plan_is_kept(grown: Connection) -> None:
    """Letters that a bug has made within a minute are replayed by plans that Postgres made while there were none. As
    a join, freeing the keys of a batch then read every letter of the topic for each of them: 20 times as slow."""
    letters = [row["id"] for row in await grown.fetch(f"SELECT md5(n::text)::uuid AS id FROM {_SOME}")]
    keys = [row["key"] for row in await grown.fetch(f"SELECT md5('key-' || n)::uuid AS key FROM {_SOME}")]

    pages = {name: await _pages(grown, name, arguments) for name, arguments in _asked(letters, keys).items()}

    assert await grown.fetchval("SELECT count(*) FROM tidegate.blocked_key") == 1 + _KEYS - _BATCH
    assert {name: each / _BATCH for name, each in pages.items() if each > _BATCH * _MOST_PAGES_EACH} == {}


_SOME = f"generate_series(1001, {1000 + _BATCH}) AS n"


async def _pages(connection: Connection, name: str, arguments: tuple[Any, ...]) -> int:
    """How many pages the query looked at, in all. Without what its foreign keys ask."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {_QUERIES[name]}", *arguments)
    plan = json.loads(text)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
