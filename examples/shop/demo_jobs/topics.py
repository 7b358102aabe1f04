"""What was published, read from Kafka by a plain client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer

_FETCH_MS = 500


class Published(NamedTuple):
    """A record; its headers by name."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]


async def read_topic(bootstrap: str, topic: str) -> list[Published]:
    """Everything in the topic, each record once: one that was sent again has the number of the first time."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        found: dict[str, Published] = {}
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=_FETCH_MS)).values():
                for record in batch:
                    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
                    number = headers.get("tg-outbox-id") or headers["tg-dlq-outbox-id"]
                    found.setdefault(number, Published(record.key, record.value, headers))
        return list(found.values())
    finally:
        await consumer.stop()
