"""Letters whose payload did not fit into their DLQ topic: taken from where their records stand, while they still do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from dlq.importing.rows import Restored
from dlq.importing.told import Omitted, ToldLetter
from dlq.states import LetterState
from tidegate.jobs.letter_topic import TopicReading
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import Record, TopicPartition
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import LogRange, RecordSource


async def with_payloads(settings: KafkaSettings, chunk: Sequence[Restored], clock: Clock) -> Sequence[Restored]:
    """Returns `chunk` with the payloads that stand in the letters' own topics, the same by their digest.

    A letter that stands and whose payload is not there any more is quarantined, and says where it was. Raises
    Transient.
    """
    if not any(_is_lacking(one) for one in chunk):
        return chunk
    async with open_reader(settings) as asking:
        return [await _completed(settings, asking, one, clock) if _is_lacking(one) else one for one in chunk]


def _is_lacking(one: Restored) -> bool:
    return one.state is LetterState.DEAD and one.letter.omitted is not None


async def _completed(settings: KafkaSettings, asking: RecordSource, one: Restored, clock: Clock) -> Restored:
    letter, omitted = one.letter, one.letter.omitted
    if omitted is None:
        return one
    record = await _source_record(settings, asking, letter, clock)
    if record is None or record.value is None or sha256(record.value).hexdigest() != omitted.sha256:
        return Restored(replace(letter, error_message=_where(letter, omitted)), LetterState.QUARANTINED)
    whole = replace(letter, key=record.key, value=record.value, headers=record.headers, has_payload=True, omitted=None)
    return Restored(whole, one.state)


async def _source_record(
    settings: KafkaSettings, asking: RecordSource, letter: ToldLetter, clock: Clock
) -> Record | None:
    """The record at the letter's coordinates; None where its topic is another by now, or retention took the record."""
    partition = TopicPartition(letter.topic, letter.partition)
    if partition not in await asking.partitions_of(letter.topic):
        return None
    if await asking.topic_id(letter.topic) != letter.topic_id:
        return None
    held = (await asking.ranges([partition]))[partition]
    if not held.start <= letter.offset < held.end:
        return None
    async with open_reader(settings, [partition]) as reader:
        only = {partition: LogRange(letter.offset, letter.offset + 1)}
        async for record in TopicReading(reader, only, clock).records():
            return record
    return None


def _where(letter: ToldLetter, omitted: Omitted) -> str:
    return (
        f"imported without its payload ({omitted.size} bytes, sha256 {omitted.sha256}), which did not fit into the DLQ "
        f"topic: it stood at {letter.topic}:{letter.partition}:{letter.offset} of topic id {letter.topic_id} "
        f"and is not there now; {letter.error_message}"
    )
