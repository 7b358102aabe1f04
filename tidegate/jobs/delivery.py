"""One batch of the outbox on its way to Kafka: what arrived, what must wait, what can never arrive.

Order per key, (topic, key): once a record is not acknowledged, no later record of its key counts as delivered, even if
Kafka has it; all of them are written again, in order, by a later delivery. What is read from the topic is then
A1 A2 A3, or A1 A2 A3 A2 A3; a reader that drops repeats by id sees the order of the outbox. Two things could still let
A3 in before A2, and are closed here: A2 is too large for the topic (a large record ends a wave, so its key's next one
waits for the answer), and a client that goes on after a failure (the writer drops it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from dlq.envelope import reduced
from tidegate_kernel.outbox import Kind
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing, RecordWriter

# The client's batch size: larger records travel alone, smaller ones may share a batch that is refused as a whole.
_TRAVELS_ALONE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Pending:
    """A row of the outbox."""

    id: int
    kind: Kind
    outgoing: Outgoing

    @property
    def order_key(self) -> tuple[str, bytes] | None:
        """What has an order; a record without a key has none."""
        return None if self.outgoing.key is None else (self.outgoing.topic, self.outgoing.key)

    @property
    def travels_alone(self) -> bool:
        record = self.outgoing
        headers = sum(len(name) + len(value or b"") for name, value in record.headers)
        return len(record.value or b"") + len(record.key or b"") + headers > _TRAVELS_ALONE_BYTES


class Delivery:
    """Outcome of a batch: ids that Kafka has, ids it will never take (why), topics that did not answer (why)."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._held_back: set[tuple[str, bytes]] = set()
        self.delivered: list[int] = []
        self.refused: dict[int, str] = {}
        self.stalled: dict[str, str] = {}

    async def write(self, wave: Sequence[Pending]) -> None:
        """Every record of the wave is delivered, refused, or stays for a later delivery. See `waves`."""
        ready = [p for p in wave if p.order_key not in self._held_back and p.outgoing.topic not in self.stalled]
        if not ready:
            return
        answers = await self._writer.write([p.outgoing for p in ready])
        for pending, answer in zip(ready, answers, strict=True):
            if pending.order_key in self._held_back:
                continue
            await self._take(pending, answer)

    async def _take(self, pending: Pending, answer: NotAcknowledged | None) -> None:
        if answer is None:
            self.delivered.append(pending.id)
        elif isinstance(answer, MessageTooLarge):
            await self._shrink(pending)
            if not pending.travels_alone:
                # Later ones of its key may have been in the refused batch, or behind it and written.
                self._hold_back(pending)
        else:
            self.stalled[pending.outgoing.topic] = str(answer)
            self._hold_back(pending)

    async def _shrink(self, pending: Pending) -> None:
        """Writes the record by itself, and a dead letter in ever smaller forms until the topic takes it."""
        forms = chain((pending.outgoing,), reduced(pending.outgoing) if pending.kind == "dead_letter" else ())
        for form in forms:
            (answer,) = await self._writer.write([form])
            if not isinstance(answer, MessageTooLarge):
                await self._take(pending, answer)
                return
        self.refused[pending.id] = f"too large for topic {pending.outgoing.topic!r}; raise its max.message.bytes"

    def _hold_back(self, pending: Pending) -> None:
        if pending.order_key is not None:
            self._held_back.add(pending.order_key)


def waves(batch: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Cuts `batch`, in its order, so that no record shares a wave with an earlier large one of its key."""
    wave: list[Pending] = []
    large: set[tuple[str, bytes]] = set()
    for pending in batch:
        key = pending.order_key
        if key in large:
            yield wave
            wave, large = [], set()
        wave.append(pending)
        if key is not None and pending.travels_alone:
            large.add(key)
    if wave:
        yield wave
