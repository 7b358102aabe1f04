"""A service's own `.sql` files: each is run once, in name order, in the transaction that records it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tidegate.migrations.phases import Phase
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.migrations")


@dataclass(frozen=True, slots=True)
class ServiceMigrations:
    """The folder of one service. Files whose names end in `_post` belong to the post phase, all others to pre."""

    service: str
    folder: Path

    async def apply(self, dsn: str, phase: Phase) -> Sequence[str]:
        """The folder's files of `phase` are applied; returns the names of the new ones. Call under `exclusively`.

        Raises Misconfigured for a file that fails (its own statements are rolled back, earlier files stay) and for one
        that was changed after it had been applied.
        """
        files = self._files(phase)
        async with connect(dsn) as connection:
            pending = await self._pending(connection, files)
            for file in pending:
                await self._run(connection, file)
        return [file.name for file in pending]

    async def pending(self, dsn: str, phase: Phase) -> Sequence[str]:
        """Returns the names of the files that were not applied yet. Raises Misconfigured as `apply`."""
        async with connect(dsn) as connection:
            if await connection.fetchval("SELECT to_regclass('tidegate.user_migration')") is None:
                return [file.name for file in self._files(phase)]
            return [file.name for file in await self._pending(connection, self._files(phase))]

    def _files(self, phase: Phase) -> Sequence[Path]:
        if not self.folder.is_dir():
            raise Misconfigured(f"App.migrations of service {self.service!r}: there is no folder {str(self.folder)!r}")
        files = sorted(self.folder.glob("*.sql"), key=lambda file: file.name)
        return [f for f in files if phase is Phase.ALL or f.stem.endswith("_post") == (phase is Phase.POST)]

    async def _pending(self, connection: Connection, files: Sequence[Path]) -> Sequence[Path]:
        rows = await connection.fetch(_QUERIES["applied_files"], self.service)
        applied = {row["name"]: row["sha256"] for row in rows}
        for file in files:
            if applied.get(file.name, _digest(file)) != _digest(file):
                raise Misconfigured(
                    f"migration {file.name!r} of service {self.service!r} was changed after it had been applied; "
                    "restore it and put the change into a new file"
                )
        return [file for file in files if file.name not in applied]

    async def _run(self, connection: Connection, file: Path) -> None:
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '10s'")
                await connection.execute(_QUERIES["leave_our_schema"])
                await connection.execute(file.read_text(encoding="utf-8"))
                await connection.execute(_QUERIES["record_file"], self.service, file.name, _digest(file))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, UnicodeDecodeError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise Misconfigured(
                f"migration {file.name!r} of service {self.service!r} failed and was rolled back: {why}"
            ) from error


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
