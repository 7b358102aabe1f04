"""Records to be produced to Kafka, written in the transaction that decided them.

The relay (`tidegate.jobs.relay`) publishes them in the order of their ids. Ids follow the order of the statements
inside a transaction and of transactions that run one after the other; two transactions side by side have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing

_QUERIES = load_queries(__package__)

RELAY_LOCK = 0x7469_6465_6F75_7462  # "tideoutb"
"""The advisory lock of whichever relay publishes."""

OUTBOX_ID = "tg-outbox-id"
"""Header of every record that left an outbox: its number there, the same when it is sent again."""

Kind = Literal["event", "dead_letter", "audit"]

_COLUMNS = ("kind", "topic", "key", "value", "header_names", "header_values")


async def enqueue(connection: Connection, records: Sequence[Outgoing], *, kind: Kind = "event") -> None:
    """`records` will be published in their order, if and when the caller's transaction commits.

    The partition is chosen by key when they are published. Raises Transient if Postgres or the road to it failed.
    """
    if not records:
        return
    rows = [
        (kind, r.topic, r.key, r.value, [_name(name) for name, _ in r.headers], [value for _, value in r.headers])
        for r in records
    ]
    with translated_errors("outbox"):
        # COPY takes ragged arrays as they are and is the cheapest road for many rows.
        await connection.copy_records_to_table("outbox", schema_name="tidegate", columns=_COLUMNS, records=rows)


async def hold_relays(connection: Connection) -> None:
    """Until the caller's transaction ends no relay publishes anything, and what one had in hand has left the outbox."""
    await connection.execute(_QUERIES["hold_relays"], RELAY_LOCK)


def _name(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
