"""What producers have written, and what each record is: the model's only input. Knows nothing of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tests.property.application import COPIES, ORDERS, PARTITIONS, UNDECODABLE, topic_name
from tests.property.schedule import Mood, Spec
from tidegate.testing.log import StoredRecord
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import Outgoing, UnreadableRecord


@dataclass(frozen=True, slots=True)
class ProducedRecord:
    """A record and the event it carries. Versions are unique: two events of a key never tie."""

    record: StoredRecord
    event: str
    spec: Spec
    version: int

    @property
    def place(self) -> tuple[str, int, int]:
        return self.record.topic, self.record.partition, self.record.offset

    @property
    def key(self) -> bytes | None:
        return self.record.key


class Produced:
    """Writes to the broker and remembers."""

    def __init__(self, service: str, broker: MemoryBroker) -> None:
        self._service, self._broker = service, broker
        self.records: list[ProducedRecord] = []
        self.events: dict[str, Spec] = {}

    def new(self, spec: Spec) -> ProducedRecord:
        """A new event at the end of its key's partition of the first topic."""
        number = len(self.events)
        event = f"e{number}"
        self.events[event] = spec
        return self._write(ORDERS, event, spec, spec.version * 1000 + number)

    def again(self, which: int, *, is_copy: bool) -> ProducedRecord | None:
        """The event of an earlier record at a new offset, in the second topic if `is_copy`; None before the first."""
        if not self.records:
            return None
        earlier = self.records[which % len(self.records)]
        topic = COPIES if is_copy or earlier.record.topic == topic_name(self._service, COPIES) else ORDERS
        return self._write(topic, earlier.event, earlier.spec, earlier.version)

    def _write(self, topic: str, event: str, spec: Spec, version: int) -> ProducedRecord:
        partition = TopicPartition(topic_name(self._service, topic), spec.key % PARTITIONS[topic])
        told = {"specversion": "1.0", "id": event, "source": "tests", "type": _type(spec.mood)}
        headers = [(f"ce_{name}", text.encode()) for name, text in told.items()]
        headers.append(("version", b"%d" % version))
        key = b"k%d" % spec.key
        value = _value(spec.mood, version)
        record = self._broker.append(Outgoing(partition.topic, value, key, headers, partition=partition.partition))
        if spec.mood is Mood.UNREADABLE:
            log = self._broker.log(partition)
            assert log is not None
            log.faults[record.offset] = UnreadableRecord("injected: a bad header name", offset=record.offset)
        produced = ProducedRecord(record, event, spec, version)
        self.records.append(produced)
        return produced


def _type(mood: Mood) -> str:
    return "else" if mood is Mood.UNLISTED else "placed"


def _value(mood: Mood, version: int) -> bytes | None:
    match mood:
        case Mood.TOMBSTONE:
            return None
        case Mood.UNDECODABLE:
            return UNDECODABLE + msgspec.json.encode({"mood": mood, "version": version})
        case Mood.INVALID:
            return msgspec.json.encode({"mood": 1, "version": version})
        case Mood.NUL_TEXT:
            return msgspec.json.encode({"mood": mood, "version": version, "text": "a\0b"})
    return msgspec.json.encode({"mood": mood, "version": version})
