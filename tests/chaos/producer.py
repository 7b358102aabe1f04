"""The producer: a steady rate through every outage of Kafka, and a log of its own of what it told and what was taken.

The log is the truth that the auditor starts from. Each line is a JSON object: `{"told": …}` before a record is sent,
`{"taken": …}` once Kafka has acknowledged a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.chaos.story import Story, Told, wire

_ROUND_SECONDS = 0.1
# After an outage the backlog is told in rounds that fit into a batch a partition.
_LARGEST_ROUND = 1000
_BATCH_BYTES = 512 * 1024
_SEND_SECONDS = 8.0
_AFTER_FAILURE_SECONDS = 0.5


class Taken(NamedTuple):
    """Kafka acknowledged a batch. `offset` is its first record's, or -1 where Kafka did not say."""

    topic: str
    partition: int
    offset: int
    numbers: Sequence[int]


class Producer:
    """Tells a story at `rate` records a second until it is told to stop. Use once."""

    def __init__(self, bootstrap: str, story: Story, log_file: Path, *, rate: float) -> None:
        self._bootstrap, self._story, self._log_file, self.rate = bootstrap, story, log_file, rate
        self._encode = msgspec.json.Encoder().encode
        self._client: Any = None
        self.told = 0
        self.failures = 0
        self.ends: dict[tuple[str, int], int] = {}
        """What Kafka acknowledged, per topic and partition: the offset after the last record of ours."""

    async def run(self, stop: asyncio.Event) -> None:
        """Returns after `stop`, with everything that was told acknowledged."""
        try:
            with self._log_file.open("ab") as log:
                await self._tell_steadily(stop, log)
        finally:
            await self._drop()

    async def _tell_steadily(self, stop: asyncio.Event, log: Any) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not stop.is_set():
            due = int((loop.time() - started) * self.rate) - self.told
            if due > 0:
                await self._tell(min(due, _LARGEST_ROUND), log)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _ROUND_SECONDS)

    async def _tell(self, count: int, log: Any) -> None:
        told = self._story.next(count)
        log.writelines(self._encode({"told": each}) + b"\n" for each in told)
        log.flush()
        self.told += len(told)
        batches: dict[tuple[str, int], list[Told]] = defaultdict(list)
        for each in told:
            batches[each.topic, each.partition].append(each)
        while batches:
            for taken in await self._send(batches):
                log.write(self._encode({"taken": taken._asdict()}) + b"\n")
                del batches[taken.topic, taken.partition]

    async def _send(self, batches: dict[tuple[str, int], list[Told]]) -> list[Taken]:
        """The batches that Kafka took. The others may have arrived as well: they are sent again, which is a repeat."""
        sent: dict[tuple[str, int], asyncio.Future[Any]] = {}
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(_SEND_SECONDS):
                client = await self._connected()
                for at, told in batches.items():
                    sent[at] = await client.send_batch(self._batch(client, told), at[0], partition=at[1])
                await asyncio.wait(sent.values())
        taken = [
            self._note(at, future.result().offset, batches[at]) for at, future in sent.items() if _is_taken(future)
        ]
        if len(taken) < len(batches):
            self.failures += 1
            await self._drop()
            await asyncio.sleep(_AFTER_FAILURE_SECONDS)
        return taken

    def _note(self, at: tuple[str, int], offset: int, batch: Sequence[Told]) -> Taken:
        if offset >= 0:
            self.ends[at] = max(self.ends.get(at, 0), offset + len(batch))
        return Taken(*at, offset, [each.number for each in batch])

    def _batch(self, client: Any, told: Sequence[Told]) -> Any:
        batch, now = client.create_batch(), datetime.now(UTC)
        for each in told:
            key, value, headers = wire(each, now)
            added = batch.append(key=key, value=value, timestamp=int(now.timestamp() * 1000), headers=headers)
            assert added is not None, "a round does not fit into a batch: lower _LARGEST_ROUND"
        batch.close()
        return batch

    async def _connected(self) -> Any:
        if self._client is None:
            client = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                max_batch_size=_BATCH_BYTES,
                request_timeout_ms=5000,
                metadata_max_age_ms=5000,
            )
            try:
                await client.start()
            except BaseException:
                await _stop(client)
                raise
            self._client = client
        return self._client

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _stop(client)


def _is_taken(sent: asyncio.Future[Any]) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is None


async def _stop(client: Any) -> None:
    """Its connections are closed and what it holds is forgotten: `stop` would wait for a broker that is away."""
    client._closed = True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(client._sender.close(), client.client.close()), timeout=5)


@contextlib.asynccontextmanager
async def producing(producer: Producer) -> AsyncIterator[asyncio.Event]:
    """Inside it tells its story; afterwards it has ended. Yields what stops it."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(producer.run(stop), name="producer")
        try:
            yield stop
        finally:
            stop.set()
