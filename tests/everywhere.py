"""Where a text stands in Tidegate's own tables: what a sceptic would ask of the database after an erasure."""

from __future__ import annotations

from tidegate_kernel.postgres import Connection, Pool

_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'tidegate'"


async def columns_with(connection: Connection | Pool, text: str) -> list[str]:
    """The columns of every table of ours that hold `text`, as it is or as the bytes of it: `table.column`, sorted."""
    found = []
    for table, column in await connection.fetch(_COLUMNS):
        count = await connection.fetchval(
            f'SELECT count(*) FROM tidegate."{table}" AS t '
            f'WHERE strpos(t."{column}"::text, $1) > 0 OR strpos(t."{column}"::text, encode($1::bytea, \'hex\')) > 0',
            text,
        )
        found += [f"{table}.{column}"] if count else []
    return sorted(found)
