"""A log that rotted on the broker's disk: a Kafka of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.chaos import servers
from tests.chaos.kafka import formatted_brokers
from tests.chaos.process import free_ports
from tests.integration.live import Service, running, until
from tidegate.jobs.publishing import cloud_event
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import create_topics
from tidegate_kernel.settings import KafkaSettings

pytestmark = pytest.mark.timeout(180)


class Rot:
    """What stands in the files of a broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spoil_last_byte(self, partition: TopicPartition) -> None:
        """The last batch of the partition fails its checksum from now on. A broker hands it over as it is."""
        (segment,) = (self._folder / "data" / f"{partition.topic}-{partition.partition}").glob("*.log")
        with segment.open("r+b") as file:
            file.seek(-1, 2)
            (last,) = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last ^ 0xFF]))


@pytest.fixture
async def rot(service: Service, tmp_path: Path) -> AsyncIterator[tuple[Service, Rot]]:
    """The service on a broker of its own."""
    (broker,) = await formatted_brokers(tmp_path, via=free_ports(1))
    async with servers.running([servers.of_broker(broker)]):
        kafka = KafkaSettings(bootstrap=f"127.0.0.1:{broker.direct}")
        await create_topics(kafka, {service.topic: 2}, replication=1)
        yield replace(service, kafka=kafka), Rot(broker.folder)


async def test_a_rotten_batch_blocks_its_partition_and_nothing_before_or_beside_it(rot: tuple[Service, Rot]) -> None:
    """Case 3 on a real broker: both batches come with one fetch. The first is handled, the second is never passed over,
    and the other partition goes on."""
    service, disk = rot
    spoiled, sound = TopicPartition(service.topic, 0), TopicPartition(service.topic, 1)
    await _write(service, spoiled, range(5))
    await _write(service, spoiled, range(5, 10))
    await _write(service, sound, range(20, 23))
    # Never served before it is spoilt: nothing of it is in anybody's memory.
    disk.spoil_last_byte(spoiled)

    loop = await service.loop()
    async with running(loop):
        await until(lambda: any(held.blocked for held in loop.holdings.all()))
        await _write(service, sound, range(23, 26))
        await until(lambda: _stands(loop.holdings.settled(), {spoiled: 5, sound: 6}))
        (blocked,) = [held for held in loop.holdings.all() if held.blocked]
        assert blocked.partition == spoiled
        assert "offset 5 cannot be read: corrupt" in str(blocked.blocked)
        assert "tidegate offsets skip" in str(blocked.blocked)

    assert await service.effects() == [*range(5), *range(20, 26)]
    assert await service.pool.fetchval("SELECT count(*) FROM tidegate.dead_letter") == 0


def _stands(settled: dict[TopicPartition, int], wanted: dict[TopicPartition, int]) -> bool:
    return settled == wanted


async def _write(service: Service, partition: TopicPartition, numbers: range) -> None:
    """All of `numbers` in one batch of records."""
    producer = AIOKafkaProducer(bootstrap_servers=service.kafka.bootstrap)
    await producer.start()
    try:
        batch = producer.create_batch()
        for n in numbers:
            attributes = {"id": f"e{n}", "source": "tests", "type": "noted"}
            record = cloud_event(service.topic, {"n": n}, attributes=attributes)
            batch.append(key=None, value=record.value, timestamp=None, headers=list(record.headers))
        await (await producer.send_batch(batch, partition.topic, partition=partition.partition))
    finally:
        await producer.stop()
