"""Which revisions this code has, and whether a database has them: without Alembic, which is slow to import.

A revision's file is `<number>_<words>_<phase>.sql`. Within a phase revisions build on each other in the order of their
numbers, and a post revision on all pre ones before it; a test holds Alembic's own graph to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import asyncpg

from tidegate.migrations.phases import Phase
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Connection, address, connect

VERSION_SCHEMA = "tidegate"
VERSION_TABLE = "migration"
VERSIONS_FOLDER = Path(__file__).with_name("versions")


class Revision(NamedTuple):
    """One step of the schema."""

    number: str
    name: str
    phase: Phase


def known_revisions(phase: Phase = Phase.ALL) -> Sequence[Revision]:
    """Returns this code's revisions of `phase`, oldest first."""
    found = [_revision(file.stem) for file in sorted(VERSIONS_FOLDER.glob("*.sql"))]
    return [revision for revision in found if phase in (Phase.ALL, revision.phase)]


async def pending_migrations(dsn: str, phase: Phase = Phase.ALL) -> Sequence[str]:
    """Returns the names of Tidegate's migrations that the database lacks, oldest first. Raises Misconfigured."""
    async with connect(dsn) as connection:
        heads = await _heads(connection)
    known = {revision.number: revision for revision in known_revisions()}
    if not heads <= known.keys():
        return []  # newer code was here, and its schema is one that ours can use
    applied = _applied([known[head] for head in heads])
    return [revision.name for revision in known_revisions(phase) if revision not in applied]


async def require_schema(dsn: str) -> None:
    """Raises Misconfigured unless the database has every table this code works with."""
    pending = await pending_migrations(dsn, Phase.PRE)
    if not pending:
        return
    if len(pending) == len(known_revisions(Phase.PRE)):
        raise Misconfigured(f"postgres at {address(dsn)} has no Tidegate tables; run 'tidegate migrate'")
    raise Misconfigured(f"postgres at {address(dsn)} lacks {', '.join(pending)}; run 'tidegate migrate'")


def _revision(stem: str) -> Revision:
    return Revision(stem.partition("_")[0], stem, Phase.POST if stem.endswith("_post") else Phase.PRE)


def _applied(heads: Iterable[Revision]) -> set[Revision]:
    applied = set()
    for head in heads:
        applied |= {r for r in known_revisions(head.phase) if r.number <= head.number}
        # Alembic keeps one row for a post revision and the pre ones it depends on.
        applied |= {r for r in known_revisions(Phase.PRE) if r.number < head.number}
    return applied


async def _heads(connection: Connection) -> set[str]:
    table = f"{VERSION_SCHEMA}.{VERSION_TABLE}"
    try:
        if await connection.fetchval("SELECT to_regclass($1)", table) is None:
            return set()
        rows = await connection.fetch(f"SELECT version_num FROM {table}")  # noqa: S608  # two constants
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(f"table {table}: {error}; grant this role USAGE and SELECT on schema 'tidegate'") from error
    return {row["version_num"] for row in rows}
