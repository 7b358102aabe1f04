"""Exports that are past their time lose file and row, so that a crash leaves neither without the other for ever."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Protocol
from uuid import UUID

from examples.shop.exports.files import ExportFiles
from tidegate import Context, Page

_EXPIRED = """
SELECT e.id, e.requested_at
FROM export AS e
WHERE e.tenant = $1 AND e.brand = $2 AND e.requested_at < $3 AND NOT e.is_held
    AND ($4::timestamptz IS NULL OR (e.requested_at, e.id) > ($4, $5::uuid))
ORDER BY e.requested_at, e.id
LIMIT $6
"""
# Locked in one order, whoever does it; what somebody has meanwhile asked to be kept is passed by.
_LOCK = """
SELECT e.id
FROM export AS e
WHERE e.tenant = $1 AND e.brand = $2 AND e.id = ANY($3::uuid[]) AND e.requested_at < $4 AND NOT e.is_held
ORDER BY e.id
FOR UPDATE
"""
_FORGET = "DELETE FROM export WHERE tenant = $1 AND brand = $2 AND id = ANY($3::uuid[])"


class KeepsExports(Protocol):
    """What these handlers need of `ctx.deps`."""

    @property
    def exports(self) -> ExportFiles: ...


@dataclass(frozen=True, slots=True)
class ExpiredExports:
    """Which exports have been kept for long enough?"""

    page: Page


@dataclass(frozen=True, slots=True)
class RemoveExport:
    """Remove an export that was asked for before `expired_before`."""

    id: UUID
    requested_at: datetime
    expired_before: datetime


def place_of(export: RemoveExport) -> str:
    """The export's place in the order that they are asked for in."""
    return f"{export.requested_at.isoformat()} {export.id}"


def removal_of(export: RemoveExport) -> RemoveExport:
    return export


async def expired_exports(query: ExpiredExports, ctx: Context[KeepsExports]) -> Sequence[RemoveExport]:
    """The next exports that are past their time, oldest first, without those that somebody has asked to be kept."""
    page, before = query.page, query.page.occasion.expired_before
    assert before is not None  # the job declares a period
    scope = (page.scope.tenant, page.scope.brand)
    rows = await ctx.db.fetch(_EXPIRED, *scope, before, *_parsed(page.after), page.limit)
    return [RemoveExport(row["id"], row["requested_at"], before) for row in rows]


async def remove_exports(exports: Sequence[RemoveExport], ctx: Context[KeepsExports]) -> None:
    """Their files are gone, and their rows once the transaction commits.

    Files first, rows with the COMMIT: the row is all that remembers the file. Whatever happens in between leaves a row
    without a file, which the next run finds again and removes; with the rows gone first, a crash would leave a file
    with somebody's data in it that nobody knows of.
    """
    scope = (ctx.scope.tenant, ctx.scope.brand)
    rows = await ctx.db.fetch(_LOCK, *scope, [export.id for export in exports], exports[0].expired_before)
    ids = [row["id"] for row in rows]
    given_up = Event()
    try:
        await ctx.thread(ctx.deps.exports.remove, ids, given_up.is_set)
    finally:
        given_up.set()  # a thread goes on when a disk that hung does: the rest may have to be kept by then
    await ctx.db.execute(_FORGET, *scope, ids)


def _parsed(place: str | None) -> tuple[datetime | None, UUID | None]:
    if place is None:
        return None, None
    requested_at, export = place.split(" ")
    return datetime.fromisoformat(requested_at), UUID(export)
