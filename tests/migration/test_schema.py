"""Migrations on a real Postgres: what they build, how often, and what stands in their way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
from alembic.script import ScriptDirectory

from tests.migration.snapshot import SNAPSHOT, schema_text
from tidegate.migrations.phases import Phase
from tidegate.migrations.revisions import VERSIONS_FOLDER, known_revisions, pending_migrations, require_schema
from tidegate.migrations.schema import exclusively, migrate
from tidegate.migrations.service import ServiceMigrations
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.queries import load_queries


async def test_all_migrations_together_are_the_snapshot(empty_database: str) -> None:
    """A migration that was edited after its release, or a snapshot nobody looked at, shows here."""
    await migrate(empty_database)
    async with connect(empty_database) as connection:
        assert await schema_text(connection) == SNAPSHOT.read_text(encoding="utf-8"), (
            "look at the difference; if it is meant: scripts/with-stack .venv/bin/python -m tests.migration.snapshot"
        )


async def test_second_migrate_changes_nothing(empty_database: str) -> None:
    """Every release and every restart of its job runs the command."""
    assert await migrate(empty_database) == [revision.name for revision in known_revisions()]
    assert await migrate(empty_database) == []


async def test_migrates_at_once_do_the_work_once(empty_database: str) -> None:
    """Two replicas start together; one builds, the others find it built."""
    done = await asyncio.gather(*(migrate(empty_database) for _ in range(4)))
    assert sorted(map(len, done)) == [0, 0, 0, len(known_revisions())]


async def test_missing_tables_are_named_with_the_remedy(empty_database: str) -> None:
    """A worker that is rolled out before the migration must say what was forgotten."""
    with pytest.raises(Misconfigured, match=r"has no Tidegate tables; run 'tidegate migrate'"):
        await require_schema(empty_database)


async def test_newer_schema_is_left_alone_and_usable(empty_database: str) -> None:
    """A rolled-back release meets the tables of the newer one: it runs on them and must not touch them."""
    await migrate(empty_database)
    async with connect(empty_database) as connection:
        await connection.execute("UPDATE tidegate.migration SET version_num = '9999'")
    assert await pending_migrations(empty_database) == []
    assert await migrate(empty_database) == []
    await require_schema(empty_database)


async def test_role_without_the_right_to_create_is_told_which(empty_database: str) -> None:
    """Whoever grants it is somebody else, and needs the very words."""
    async with connect(empty_database) as connection:
        role = f"{(await connection.fetchval('SELECT current_database()'))}_poor"
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'poor'")
    try:
        with pytest.raises(Misconfigured, match="grant the role CREATE on the database"):
            await migrate(_as_role(empty_database, role, "poor"))
    finally:
        async with connect(empty_database) as connection:
            await connection.execute(f"DROP ROLE {role}")


def test_graph_of_alembic_follows_the_names_of_the_files() -> None:
    """`tidegate run` checks the schema by file names alone; Alembic must mean the same."""
    graph = {script.revision: script for script in ScriptDirectory(str(VERSIONS_FOLDER.parent)).walk_revisions()}
    assert sorted(graph) == [revision.number for revision in known_revisions()]
    before: dict[Phase, str | None] = {Phase.PRE: None, Phase.POST: None}
    for revision in known_revisions():
        script = graph[revision.number]
        assert Path(script.path).stem == revision.name
        assert script.down_revision == before[revision.phase]
        assert revision.phase in script.branch_labels
        if revision.phase is Phase.POST:
            assert script.dependencies == before[Phase.PRE]
        before[revision.phase] = revision.number


@pytest.mark.parametrize("package", ["tidegate.console", "tidegate.migrations", "tidegate.jobs"])
async def test_every_query_prepares(database: str, package: str) -> None:
    """A query that names a column the schema does not have fails here, not on call at night."""
    async with connect(database) as connection:
        for text in load_queries(package).values():
            await connection.prepare(text)


# A service's own folder.


async def _apply(folder: Path, dsn: str, phase: Phase = Phase.ALL) -> list[str]:
    async with exclusively(dsn):
        return list(await ServiceMigrations("shop", folder).apply(dsn, phase))


async def test_files_of_the_service_run_once_in_name_order(database: str, tmp_path: Path) -> None:
    """A later file builds on the tables of an earlier one, and an INSERT must not happen twice."""
    (tmp_path / "2_more.sql").write_text("INSERT INTO ledger VALUES (1); INSERT INTO ledger VALUES (2);")
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer);")
    assert await _apply(tmp_path, database) == ["1_ledger.sql", "2_more.sql"]
    assert await _apply(tmp_path, database) == []
    async with connect(database) as connection:
        assert await connection.fetchval("SELECT count(*) FROM ledger") == 2


async def test_tables_of_the_service_stay_out_of_our_schema(empty_database: str, tmp_path: Path) -> None:
    """A role that is called tidegate has our schema, as "$user", first in its search path."""
    async with connect(empty_database) as connection:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE {name} SET search_path = tidegate, public")
    await migrate(empty_database)
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer);")
    await _apply(tmp_path, empty_database)
    async with connect(empty_database) as connection:
        assert await connection.fetchval("SELECT to_regclass('public.ledger')") is not None


async def test_post_files_wait_for_the_post_phase(database: str, tmp_path: Path) -> None:
    """Dropping a column while the old code still reads it is an outage."""
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer, old integer);")
    (tmp_path / "2_drop_old_post.sql").write_text("ALTER TABLE ledger DROP COLUMN old;")
    assert await _apply(tmp_path, database, Phase.PRE) == ["1_ledger.sql"]
    assert await _apply(tmp_path, database, Phase.POST) == ["2_drop_old_post.sql"]


async def test_failing_file_leaves_nothing_and_keeps_the_ones_before(database: str, tmp_path: Path) -> None:
    """Half a migration is a state that no release was tested with."""
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer);")
    (tmp_path / "2_bad.sql").write_text("CREATE TABLE half (n integer); SELECT nonsense;")
    with pytest.raises(Misconfigured, match=r"'2_bad.sql' of service 'shop' failed and was rolled back: .*nonsense"):
        await _apply(tmp_path, database)
    async with connect(database) as connection:
        assert await connection.fetchval("SELECT to_regclass('half')") is None
        assert await connection.fetchval("SELECT to_regclass('ledger')") == "ledger"


async def test_changed_file_is_refused(database: str, tmp_path: Path) -> None:
    """Its change would reach new databases only, and the old ones would differ for ever."""
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer);")
    await _apply(tmp_path, database)
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n bigint);")
    with pytest.raises(Misconfigured, match="was changed after it had been applied"):
        await _apply(tmp_path, database)


async def test_missing_folder_is_named(database: str, tmp_path: Path) -> None:
    """An image without the folder would otherwise run against tables that are not there."""
    with pytest.raises(Misconfigured, match=r"App.migrations of service 'shop': there is no folder"):
        await _apply(tmp_path / "nowhere", database)


async def test_migration_that_waits_for_a_table_gives_up(database: str, tmp_path: Path) -> None:
    """Waiting behind a long report, it would hold back every worker that comes after it."""
    (tmp_path / "1_ledger.sql").write_text("CREATE TABLE ledger (n integer);")
    await _apply(tmp_path, database)
    (tmp_path / "2_wide.sql").write_text("SET LOCAL lock_timeout = '100ms'; ALTER TABLE ledger ADD COLUMN m integer;")
    holder = await asyncpg.connect(database)
    try:
        await holder.execute("BEGIN; SELECT * FROM ledger")
        with pytest.raises(Misconfigured, match="lock timeout"):
            await _apply(tmp_path, database)
    finally:
        await holder.close()


def _as_role(dsn: str, role: str, password: str) -> str:
    return f"postgresql://{role}:{password}@{dsn.rpartition('@')[2]}"
