"""What a run cost Postgres: time of its backends, and the log they wrote."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import psutil

from bench.plan import Result
from tidegate_kernel.settings import Settings

_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_WAL = "SELECT coalesce(sum((pg_stat_get_backend_wal(pid)).wal_bytes), 0)::bigint FROM unnest($1::int[]) AS p (pid)"


async def postgres_share(settings: Settings) -> tuple[float, int]:
    """CPU seconds and bytes of log of this database's backends, as far as this machine and server can tell."""
    connection = await asyncpg.connect(settings.postgres_dsn.get_secret_value())
    try:
        pids = [row["pid"] for row in await connection.fetch(_BACKENDS)]
        cpu = sum(_cpu_seconds(pid) for pid in pids)
        knows_wal = connection.get_server_version().major >= 18
        wal = await connection.fetchval(_WAL, pids) if knows_wal else 0
    finally:
        await connection.close()
    return cpu, int(wal)


def with_share(result: Result, share: tuple[float, int]) -> Result:
    """The result, and what Postgres had to do for it."""
    cpu, wal = share
    more: dict[str, Any] = {"postgres_cpu_seconds": cpu, "wal_bytes": wal}
    return msgspec.structs.replace(result, **more)


def _cpu_seconds(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        return float(sum(process.cpu_times()[:2])) if "postgres" in process.name() else 0.0
    except psutil.Error:
        return 0.0  # a server on another machine
