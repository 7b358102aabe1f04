"""Materialized views on a table of ours: an insert that is repeated must not count twice in any of them.

A view is a trigger: whatever is inserted goes through it, also what a newer version replaces later, and what is
inserted again after an answer was lost. Only tokens over a window keep it exact, in each table on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from projections.clickhouse_system import Found, find, settings_of
from tidegate_kernel.errors import Misconfigured

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

WINDOW = "non_replicated_deduplication_window"
_REPLICATED_WINDOW, _REPLICATED_SECONDS = "replicated_deduplication_window", "replicated_deduplication_window_seconds"
# Blocks that are remembered. Other partitions and lanes insert while one range waits to be applied again.
WINDOW_BLOCKS = 10_000
# So long may a range wait: over a weekend with a day on each side. 26 has an hour by default, 25 a week.
_WINDOW_SECONDS = 4 * 24 * 3600


async def require_no_views(table: Found) -> None:
    """Raises Misconfigured for a table whose inserts may be repeated, and that feeds a materialized view."""
    if table.views:
        named = ", ".join(f"{database}.{name}" for database, name in table.views)
        raise Misconfigured(
            f"table {table.name!r}: materialized view {named} would count a row again each time it is written again; "
            "declare ClickHouse(…, stable_batches=True) with a table of another name, or drop the view"
        )


async def require_exact_views(client: AsyncClient, table: Found) -> None:
    """Raises Misconfigured unless the table, and every table that its views fill, remember tokens for long enough."""
    await _require_window(client, table, by="")
    await _require_exact_targets(client, table.views)


async def _require_exact_targets(client: AsyncClient, views: Sequence[tuple[str, str]]) -> None:
    for database, name in views:
        view = await find(client, name, database)
        if view is not None:  # it may have been dropped since we asked
            await _require_exact_target(client, view)


async def _require_exact_target(client: AsyncClient, view: Found) -> None:
    by = f" (filled by materialized view {view.name!r})"
    found = [await find(client, name, database) for database, name in view.targets]
    target = next((each for each in found if each is not None), None)
    if target is None:
        raise Misconfigured(
            f"materialized view {view.name!r}: which table it fills cannot be told; make it as "
            "CREATE MATERIALIZED VIEW … TO table, or drop it"
        )
    if target.engine.endswith("MergeTree"):
        await _require_window(client, target, by=by)
    elif target.engine != "Null":
        raise Misconfigured(
            f"table {target.name!r}{by} has the engine {target.engine}, which knows no tokens: what is inserted again "
            "would count twice; let the view fill a table of the MergeTree family"
        )
    await _require_exact_targets(client, target.views)


async def _require_window(client: AsyncClient, table: Found, *, by: str) -> None:
    names = [_REPLICATED_WINDOW, _REPLICATED_SECONDS] if table.is_replicated else [WINDOW]
    settings = await settings_of(client, table, names)
    blocks = int(settings.get(names[0], 0))
    seconds = int(settings.get(_REPLICATED_SECONDS, _WINDOW_SECONDS)) if table.is_replicated else _WINDOW_SECONDS
    if blocks >= WINDOW_BLOCKS // 10 and seconds >= _WINDOW_SECONDS:
        return
    wanted = f"{names[0]} = {WINDOW_BLOCKS}"
    if table.is_replicated:
        wanted += f", {_REPLICATED_SECONDS} = {_WINDOW_SECONDS}"
    raise Misconfigured(
        f"table {table.name!r}{by} remembers {blocks} blocks"
        + (f" for {seconds} s" if table.is_replicated else "")
        + f": a batch that is inserted again after a crash could count twice; run ALTER TABLE {table.database}."
        f"`{table.name}` MODIFY SETTING {wanted}"
    )
