"""The audit read back: its rows, and whether they are still the ones that were written.

A row's hash covers the row and the hash before it, so an edit, a removal or an insertion shows at the first row that it
touches. What a chain alone cannot show is that its end was cut off together with the note of it, by a restore to an
earlier time: see `audit_anchor`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from tidegate_kernel.permissions import Receipt
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)
_NO_CHAIN = UUID(int=0)
_NO_CUT = Receipt(0, b"")


class AuditRow(NamedTuple):
    """One row of the audit. `parameters` never hold payload or secrets; `error_class` is None for what was done."""

    seq: int
    at: datetime
    actor: str
    role: str | None
    token: UUID | None
    origin: str
    action: str
    target: str
    reason: str
    parameters: dict[str, Any]
    tenant: str | None
    brand: str | None
    outcome: str
    error_class: str | None
    database_identity: str
    database_user: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows; None fits all. `action` may be the part before the colon."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Chain:
    """What the table says of itself. `breaks` is empty if every row is as it was written; `notes` are worth knowing.

    `database` is the identity of the one that the table is in now. `cut`: the last row that has left by its retention;
    row 0 where none has.
    """

    id: UUID
    rows: int
    end: Receipt
    unpublished: int
    breaks: Sequence[str]
    notes: Sequence[str]
    database: str = ""
    cut: Receipt = _NO_CUT


async def list_audit(connection: Connection, wanted: AuditFilter) -> Sequence[AuditRow]:
    """Returns the newest rows that fit, newest first. Raises Transient."""
    w = wanted
    with translated_errors("list audit"):
        rows = await connection.fetch(_QUERIES["list_audit"], w.actor, w.action, w.target, w.outcome, w.since, w.limit)
    return [_row(row) for row in rows]


async def verify_chain(connection: Connection) -> Chain:
    """Returns what became of the chain: the first broken row by name, if there is one. Raises Transient.

    Call in a transaction that keeps its snapshot, or a row appended meanwhile looks like a break.
    """
    with translated_errors("verify audit"):
        end = await connection.fetchrow(_QUERIES["audit_end"])
        assert end is not None
        broken = await connection.fetchrow(_QUERIES["broken_audit_row"])
        changes = await connection.fetch(_QUERIES["database_changes"])
    if end["chain"] is None:
        lost = "the chain's end and id are missing: tidegate.audit_head has no row"
        return Chain(_NO_CHAIN, end["rows"], Receipt(0, b""), end["unpublished"], [lost], [])
    breaks = [_described(broken)] if broken is not None else _cut_off(end)
    cut = Receipt(end["cut_seq"], end["cut_hash"] or b"")
    notes = []
    if cut.seq and end["cut_told_by"] is None:
        breaks.append(f"rows 1 to {cut.seq} are missing, and no row tells that their retention took them")
    elif cut.seq:
        notes.append(f"rows 1 to {cut.seq} have left by their retention, as row {end['cut_told_by']} tells")
    notes += [
        f"before row {c['seq']} ({c['at']:%Y-%m-%d %H:%M:%SZ}) the database became another: {c['identity_before']} "
        f"is now {c['database_identity']}; it was restored, failed over or moved"
        for c in changes
    ]
    if end["last_identity"] not in (None, end["identity_now"]):
        notes.append(
            f"since row {end['last_seq']} the database became another: {end['last_identity']} is now "
            f"{end['identity_now']}; it was restored, failed over or moved"
        )
    return Chain(
        end["chain"],
        end["rows"],
        Receipt(end["seq"], end["hash"]),
        end["unpublished"],
        breaks,
        notes,
        database=end["identity_now"],
        cut=cut,
    )


async def verify_receipt(connection: Connection, seq: int, digits: str) -> str | None:
    """Returns why the row of a receipt is not what it was, or None if it is. `digits` begin the hash, in hex."""
    with translated_errors("verify audit"):
        row = await connection.fetchrow(_QUERIES["audit_receipt"], seq)
        cut = await connection.fetchval(_QUERIES["audit_cut"]) if row is None else None
    if cut is not None and seq <= cut:
        return f"row {seq} has left by its retention, as all rows up to {cut}; the audit's topic may still have it"
    if row is None:
        return f"row {seq} is missing: it was removed, or the database was restored to an earlier time"
    if row["is_edited"]:
        return f"row {seq} is not what was written: it was edited"
    if not row["hash"].hex().startswith(digits.lower()):
        return (
            f"row {seq} has hash {row['hash'].hex()[:16]}, not {digits}: another row took its number, "
            "as after a restore to an earlier time"
        )
    return None


def _described(row: asyncpg.Record) -> str:
    seq, before = row["seq"], row["seq_before"]
    if seq <= before:
        return f"row {seq} was inserted: rows are counted from 1"
    if seq != before + 1:
        missing = f"row {before + 1} is" if seq == before + 2 else f"rows {before + 1} to {seq - 1} are"
        return f"{missing} missing: removed before row {seq}"
    if row["is_edited"]:
        return f"row {seq} is not what was written: its hash does not fit it"
    return (
        f"row {seq} does not continue row {before}: row {before} was written anew, or rows were inserted, removed or "
        "put in another order"
    )


def _cut_off(end: asyncpg.Record) -> list[str]:
    """What the note of the chain's end says against the last row."""
    last = end["last_seq"] or 0
    if last < end["seq"]:
        return [f"rows after {last} are missing: the chain had {end['seq']}"]
    if last > end["seq"] or (last and end["last_hash"] != end["hash"]):
        return [f"row {last} is not the one that the chain ended with: it was written anew, or added by hand"]
    return []


def _row(row: asyncpg.Record) -> AuditRow:
    return AuditRow(**{**row, "parameters": json.loads(row["parameters"])})
