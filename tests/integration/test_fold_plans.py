"""What folds and renderers ask for costs the same however many states there are, whatever plan Postgres keeps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.test_queries_prepare import _nodes, _plan, _reads
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries

_KEYS = [f"k{number}" for number in range(0, 50_000, 100)]

# Arguments by query.
_PLANNED: dict[str, tuple[Any, ...]] = {
    "lock_states": (1, _KEYS),
    "states": (1, _KEYS),
    "write_states": (1, _KEYS, ["{}"] * len(_KEYS), [""] * len(_KEYS)),
    "take_dirty": (1, 500, 10.0),
    "clear_dirty": (1, _KEYS, [1] * len(_KEYS)),
    "mark_dirty": (1, "k1", 500),
}


@pytest.fixture
async def busy(pool: Pool) -> Any:
    """50,000 states, 20,000 of them dirty, among those of another job; statistics up to date."""
    async with pool.acquire() as connection:
        await connection.execute(
            """
            INSERT INTO tidegate.job (service, code, claim_rule)
            SELECT 'shop', 'job-' || n, 'v1' FROM generate_series(1, 2) AS n;
            INSERT INTO tidegate.fold_state (job, key, state, revision)
            SELECT j.id, 'k' || n, '{}', 1 FROM tidegate.job AS j, generate_series(0, 49999) AS n;
            INSERT INTO tidegate.dirty (job, key, revision)
            SELECT j.id, 'k' || n, 1 FROM tidegate.job AS j, generate_series(0, 19999) AS n;
            ANALYZE;
            """
        )
        yield connection


@pytest.mark.parametrize("query", _PLANNED)
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_folds_go_by_their_indexes(query: str, mode: str, busy: Connection) -> None:
    """A scan of all states in each batch is the end of a fold with a million keys."""
    await busy.execute(f"SET plan_cache_mode = {mode}")
    text = load_queries("projections.folds")[query]

    read = _reads(list(_nodes(await _plan(busy, text, _PLANNED[query]))))

    assert [each for each in read if each[1] == "Seq Scan"] == []
    assert {each[2] for each in read} <= {"fold_state_pkey", "dirty_pkey", "dirty_next", None}
