"""Rows of an audit as another program would chain them, from the words of migration 0002 alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from tidegate_kernel.postgres import Connection

_COLUMNS = (
    "seq",
    "at",
    "actor",
    "role",
    "token",
    "origin",
    "action",
    "target",
    "reason",
    "parameters",
    "tenant",
    "brand",
    "outcome",
    "error_class",
    "database_identity",
    "database_user",
)
_BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


async def fill_audit(
    connection: Connection, count: int, *, began: datetime = _BEGIN, action: str = "job:pause"
) -> None:
    """The audit, empty before, has `count` rows in a valid chain, a second apart."""
    chain = await connection.fetchval("SELECT chain FROM tidegate.audit_head")
    rows = list(_rows(chain, count, began, action))
    await connection.copy_records_to_table(
        "audit", schema_name="tidegate", columns=[*_COLUMNS, "previous_hash", "hash"], records=rows
    )
    await connection.execute("UPDATE tidegate.audit_head SET seq = $1, hash = $2", count, rows[-1][-1])


def audit_text(values: tuple[Any, ...]) -> str:
    """What is hashed of a row: each column by its length in bytes, then itself."""
    return "".join(map(_part, values))


def _part(value: Any) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            text = str((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
        case _:
            text = str(value)
    return f"{len(text.encode())}:{text}"


def _rows(chain: UUID, count: int, began: datetime, action: str) -> Iterator[tuple[Any, ...]]:
    before = sha256(str(chain).encode()).digest()
    for seq in range(1, count + 1):
        values = (
            seq,
            began + timedelta(seconds=seq, microseconds=seq * 7),
            f"operator-{seq % 20}",
            "operator",
            UUID(int=seq % 20),
            "command line, anna on laptop",
            action,
            "shop.customer-ledger",
            f"Konto {seq} prüfen",
            '{"partition": 3}',
            "acme" if seq % 3 else None,
            None,
            "done",
            None,
            "7713631682594670630:00000001:16384",
            "tide_ops",
        )
        after = sha256(before + audit_text(values).encode()).digest()
        yield (*values, before, after)
        before = after
