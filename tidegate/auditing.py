"""`tidegate audit verify`: the chain in the table, and the same rows in their topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_kernel.audit_anchor import AUDIT_TOPIC, Comparison, compare_with_topic
from tidegate_kernel.audit_chain import Chain, verify_chain
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.permissions import Receipt
from tidegate_kernel.postgres import Connection
from tidegate_kernel.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What `verify` found. `anchored` is how many rows the topic confirms; None where it could not be compared.

    `breaks` is empty if nothing was changed; `notes` are worth knowing and break nothing.
    """

    rows: int
    end: Receipt
    anchored: int | None
    breaks: Sequence[str]
    notes: Sequence[str]

    @property
    def is_intact(self) -> bool:
        return not self.breaks


async def verify_audit(connection: Connection, kafka: KafkaSettings, *, after: int = 0) -> AuditReport:
    """Returns what became of the audit. Rows that differ from the topic are passed over up to `after`: known already.

    Raises Transient if Postgres or the road to it failed.
    """
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        chain = await verify_chain(connection)
    try:
        comparison = await _compared(connection, kafka, chain, after)
    except (Transient, Misconfigured) as error:
        alone = f"compared without its anchor, so a restore to an earlier time would not show: {error}"
        return AuditReport(chain.rows, chain.end, None, chain.breaks, [*chain.notes, alone])
    notes = list(chain.notes)
    if alone_count := comparison.unanchored(chain):
        notes.append(f"{alone_count} rows are in the table alone: older than topic {AUDIT_TOPIC!r}, or never published")
    if chain.unpublished:
        notes.append(f"{chain.unpublished} rows wait in the outbox for a worker to publish them")
    breaks = [*chain.breaks, *comparison.breaks]
    return AuditReport(chain.rows, chain.end, len(comparison.found), breaks, notes)


async def _compared(connection: Connection, kafka: KafkaSettings, chain: Chain, after: int) -> Comparison:
    async with open_reader(kafka) as asking:
        partitions = await asking.partitions_of(AUDIT_TOPIC)
    if not partitions:
        raise Misconfigured(f"kafka at {kafka.bootstrap} has no topic {AUDIT_TOPIC!r}; run 'tidegate topics create'")
    async with open_reader(kafka, partitions) as reader:
        return await compare_with_topic(connection, reader, chain, clock=SystemClock(), after=after)
