"""One batch of the outbox: order per key, records that are too large, topics that do not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.jobs.delivery import Delivery, Pending, waves
from tidegate_kernel.outbox import Kind
from tidegate_kernel.source import MessageTooLarge, NotAcknowledged, Outgoing

Refuse = Callable[[Outgoing], NotAcknowledged | None]


class Log:
    """A `RecordWriter` in memory that refuses what it is told to, and goes on with the rest."""

    def __init__(self, refuse: Refuse = lambda _: None) -> None:
        self.refuse = refuse
        self.written: list[Outgoing] = []
        self.calls = 0

    async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
        self.calls += 1
        answers = [self.refuse(record) for record in records]
        self.written += [record for record, answer in zip(records, answers, strict=True) if answer is None]
        return answers

    async def close(self) -> None:
        return None

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.written]


def pending(row: int, value: bytes, *, key: bytes | None = b"k", topic: str = "t", kind: Kind = "event") -> Pending:
    return Pending(row, kind, Outgoing(topic, value, key, [("tg-dlq-payload", b"intact")]))


async def deliver(log: Log, batch: Sequence[Pending]) -> Delivery:
    delivery = Delivery(log)
    for wave in waves(batch):
        await delivery.write(wave)
    return delivery


async def test_after_an_unacknowledged_record_no_later_one_of_its_key_is_done() -> None:
    """G4: forgetting A3 while A2 must be repeated would leave the topic at A1 A3 A2 for good."""
    log = Log(lambda record: NotAcknowledged("down") if record.value == b"a2" else None)
    batch = [pending(1, b"a1"), pending(2, b"a2"), pending(3, b"a3"), pending(4, b"b1", key=b"other")]

    delivery = await deliver(log, batch)

    assert delivery.delivered == [1, 4]
    assert delivery.stalled == {"t": "down"}


async def test_a_topic_that_does_not_answer_leaves_the_others_alone() -> None:
    """One missing DLQ topic must not stop the letters and events of every other job."""
    log = Log(lambda record: NotAcknowledged("missing") if record.topic == "missing" else None)
    batch = [pending(1, b"x", topic="missing"), pending(2, b"y"), pending(3, b"z", topic="missing", key=None)]

    delivery = await deliver(log, batch)

    assert delivery.delivered == [2]
    assert set(delivery.stalled) == {"missing"}


async def test_a_letter_that_is_too_large_is_written_without_its_payload() -> None:
    """Case 42: the letter must reach the topic in some form, or its key waits for ever."""
    log = Log(lambda record: MessageTooLarge("too large") if len(record.value or b"") > 1000 else None)

    delivery = await deliver(log, [pending(1, b"x" * 20_000, kind="dead_letter")])

    assert delivery.delivered == [1]
    assert log.values() == [None]
    assert (log.written[0].headers[0][1] or b"").startswith(b"omitted; size=20000; sha256=")


async def test_the_order_of_a_key_holds_around_a_letter_that_is_too_large() -> None:
    """G4 and Case 42: the next record of the key must not overtake the one that is being made smaller."""
    log = Log(lambda record: MessageTooLarge("too large") if len(record.value or b"") > 1000 else None)
    batch = [
        pending(1, b"first", kind="dead_letter"),
        pending(2, b"x" * 20_000, kind="dead_letter"),
        pending(3, b"last", kind="dead_letter"),
    ]

    delivery = await deliver(log, batch)

    assert log.values() == [b"first", None, b"last"]
    assert delivery.delivered == [1, 2, 3]


async def test_a_small_letter_in_a_refused_client_batch_keeps_its_payload() -> None:
    """The client reports one answer for a whole batch: alone, the small record fits."""
    sizes: list[int] = []

    class Batching(Log):
        async def write(self, records: Sequence[Outgoing]) -> Sequence[NotAcknowledged | None]:
            sizes.append(len(records))
            if len(records) > 1:
                return [MessageTooLarge("the batch is too large")] * len(records)
            return await super().write(records)

    log = Batching()
    batch = [pending(1, b"a", kind="dead_letter"), pending(2, b"b", kind="dead_letter", key=b"other")]

    delivery = await deliver(log, batch)

    assert sizes == [2, 1, 1]
    assert log.values() == [b"a", b"b"]
    assert delivery.delivered == [1, 2]


async def test_an_event_that_is_too_large_is_set_aside_and_its_key_goes_on() -> None:
    """An event has no smaller form: repeating it for ever would stop everything behind it."""
    log = Log(lambda record: MessageTooLarge("too large") if len(record.value or b"") > 1000 else None)

    delivery = await deliver(log, [pending(1, b"x" * 20_000), pending(2, b"y")])

    assert list(delivery.refused) == [1]
    assert "'t'" in delivery.refused[1]
    assert delivery.delivered == [2]


async def test_small_records_of_one_key_share_one_call() -> None:
    """A hot key must not cost a round trip per record."""
    log = Log()

    delivery = await deliver(log, [pending(n, b"x") for n in range(500)])

    assert log.calls == 1
    assert len(delivery.delivered) == 500


async def test_a_topic_that_stalls_while_a_letter_is_made_smaller_keeps_it() -> None:
    """A letter must not count as refused because Kafka went away in between."""
    answers = iter([MessageTooLarge("too large"), MessageTooLarge("too large"), NotAcknowledged("down")])
    log = Log(lambda _: next(answers, None))

    delivery = await deliver(log, [pending(1, b"x" * 20_000, kind="dead_letter"), pending(2, b"y")])

    assert (delivery.delivered, delivery.refused, delivery.stalled) == ([], {}, {"t": "down"})
