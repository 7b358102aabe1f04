"""The schema `tidegate` as text, from the catalog: what all migrations together come to.

`scripts/with-stack python -m tests.migration.snapshot` writes `schema.txt` again after a migration was added; look at
the difference before committing it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import asyncpg

from tidegate.migrations.schema import migrate
from tidegate_kernel.postgres import Connection

SNAPSHOT = Path(__file__).with_name("schema.txt")

_COLUMNS = """
SELECT
    c.oid::regclass::text AS relation,
    c.relkind::text || coalesce(' ' || array_to_string(c.reloptions, ' '), '')
        || coalesce(' ' || pg_get_expr(c.relpartbound, c.oid), '')
        || coalesce(' partition by ' || pg_get_partkeydef(c.oid), '') AS kind,
    a.attname AS name,
    format_type(a.atttypid, a.atttypmod)
        || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
        || CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity by default' ELSE '' END
        || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') AS type
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
ORDER BY c.oid::regclass::text COLLATE "C", a.attnum
"""
# Not-null constraints are listed by newer servers only; the columns say so anyway.
_CONSTRAINTS = """
SELECT conrelid::regclass::text AS relation, conname AS name, pg_get_constraintdef(oid) AS definition
FROM pg_constraint
WHERE connamespace = 'tidegate'::regnamespace AND contype <> 'n'
ORDER BY conrelid::regclass::text COLLATE "C", conname COLLATE "C"
"""
_INDEXES = """
SELECT indexdef AS definition FROM pg_indexes WHERE schemaname = 'tidegate' ORDER BY indexname COLLATE "C"
"""
_FUNCTIONS = """
SELECT pg_get_functiondef(oid) AS definition FROM pg_proc
WHERE pronamespace = 'tidegate'::regnamespace ORDER BY oid::regprocedure::text COLLATE "C"
"""
_TRIGGERS = """
SELECT pg_get_triggerdef(t.oid) AS definition FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'tidegate'::regnamespace AND NOT t.tgisinternal ORDER BY t.tgname COLLATE "C"
"""


async def schema_text(connection: Connection) -> str:
    """Returns every table, constraint, index, function and trigger of schema `tidegate`, in a fixed order."""
    # Else a role named like our schema sees unqualified names.
    await connection.execute("SET search_path = pg_catalog")
    lines: list[str] = []
    for row in await connection.fetch(_COLUMNS):
        head = f"{row['relation']} ({row['kind']})"
        if head not in lines:
            lines.append(head)
        lines.append(f"    {row['relation']}.{row['name']} {row['type']}")
    constraints = await connection.fetch(_CONSTRAINTS)
    lines += [f"constraint {row['relation']} {row['name']}: {row['definition']}" for row in constraints]
    for query in (_INDEXES, _FUNCTIONS, _TRIGGERS):
        lines += [row["definition"] for row in await connection.fetch(query)]
    return "\n".join(lines) + "\n"


async def _write() -> None:
    dsn = os.environ["TIDEGATE_POSTGRES_DSN"]
    name = f"snapshot_{secrets.token_hex(4)}"
    server = await asyncpg.connect(dsn)
    try:
        await server.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            fresh = f"{dsn.rpartition('/')[0]}/{name}"
            await migrate(fresh)
            connection = await asyncpg.connect(fresh)
            SNAPSHOT.write_text(await schema_text(connection), encoding="utf-8")
            await connection.close()
        finally:
            await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await server.close()


if __name__ == "__main__":
    asyncio.run(_write())
