"""Dead letters of the small service's ledger, made as its worker makes them or put where it would have put them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import asyncpg

from tests.acceptance.cli import Cli, Worker
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

Rows = Callable[[str], list[asyncpg.Record]]

_OFFSETS = count(1000)
_KEEP = """
    INSERT INTO tidegate.dead_letter (
        id, job, topic, topic_id, partition, "offset", key, value, header_names, header_values, event_id, event_type,
        tenant, reason, error_class, error_message, fingerprint, handler, attempts
    )
    SELECT
        gen_random_uuid(), j.id, $1, p.topic_id, 0, $2, $3, $4, $5, $6, $7, 'payment.made', $8, 'rejected', 'Rejected',
        'a payment is not negative', 'f', 'keep_payment', 1
    FROM tidegate.job AS j
    JOIN tidegate.position AS p ON p.job = j.id AND p.topic = $1 AND p.partition = 0 AND p.run = 0
    WHERE j.code = 'ledger'
    RETURNING id
"""


def headers(event: str, tenant: str = "acme") -> list[tuple[str, bytes]]:
    """The envelope of a payment."""
    told = {"specversion": "1.0", "source": "/web", "type": "payment.made", "tenantid": tenant, "id": event}
    return [(f"ce_{name}", text.encode()) for name, text in told.items()]


def payment(name: str, cents: int = -5) -> bytes:
    return json.dumps({"payment": name, "cents": cents}).encode()


def topic_of(cli: Cli) -> str:
    return f"{cli.environment['SMALL_PREFIX']}.payments"


def produce(cli: Cli, *records: tuple[str, str, int]) -> None:
    """Each is a payment: key, name, cents. All in one partition."""

    async def write() -> None:
        outgoing = [
            Outgoing(topic_of(cli), payment(name, cents), key.encode(), headers(name), partition=0)
            for key, name, cents in records
        ]
        async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
            assert not any(await writer.write(outgoing))

    asyncio.run(write())


def run_ledger(cli: Cli, *texts: str) -> None:
    """A worker runs until its log has each of the texts."""
    worker = Worker(cli.start("run", "ledger"))
    for text in texts:
        worker.wait_for(text)
    assert worker.stop() == 0


@dataclass
class Letters:
    """Puts dead letters into the database, as they stand after their payments were refused for being negative."""

    cli: Cli
    kept: list[str] = field(default_factory=list)

    def keep(self, *names: str, tenant: str = "acme") -> list[str]:
        """Returns the ids of new letters, in the order of their offsets; each has a key of its own."""
        ids = asyncio.run(self._keep(names, tenant))
        self.kept += ids
        return ids

    def named(self, ids: Sequence[str] | None = None) -> list[str]:
        """Options that choose them."""
        return [word for each in ids or self.kept for word in ("--letter", each)]

    async def _keep(self, names: Sequence[str], tenant: str) -> list[str]:
        connection = await asyncpg.connect(self.cli.environment["TIDEGATE_POSTGRES_DSN"])
        try:
            return [str(await connection.fetchval(_KEEP, *self._columns(name, tenant))) for name in names]
        finally:
            await connection.close()

    def _columns(self, name: str, tenant: str) -> tuple[Any, ...]:
        pairs = headers(name, tenant)
        names, values = [header.encode() for header, _ in pairs], [value for _, value in pairs]
        return topic_of(self.cli), next(_OFFSETS), name.encode(), payment(name), names, values, name, tenant
