"""The Kafka topics that an application needs, and how they are to be created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from consumers.topics import Topic
from tidegate_kernel.audit_anchor import AUDIT_TOPIC
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.kafka import create_topics, open_reader
from tidegate_kernel.settings import KafkaSettings

# A dead letter is a record of up to the broker's default limit (1,048,588 bytes) plus up to 8 KiB of our headers.
_DLQ_MAX_MESSAGE_BYTES = 2 * 1024 * 1024
# Dead letters are few, and their order counts per key only.
_DLQ_PARTITIONS = 3
_DLQ_CONFIG = {
    "cleanup.policy": "delete",
    # The index of dead letters can be rebuilt from this topic alone, and a letter waits for a person, who may be on
    # holiday: no age is old enough to be dropped. Floods pause the job long before this fills a disk.
    "retention.ms": "-1",
    "max.message.bytes": str(_DLQ_MAX_MESSAGE_BYTES),
}


class Use(StrEnum):
    """What a topic is for."""

    SOURCE = "source"
    DEAD_LETTERS = "dead letters"
    PUBLISHED = "published"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic as it should be."""

    name: str
    use: Use
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A planned topic as it is now. One that was there before may have other partitions than planned."""

    name: str
    use: Use
    partitions: int
    is_new: bool


def source_topic(topic: Topic) -> PlannedTopic:
    """How a topic that jobs read is created. Its retention is the broker's default: the events are their owner's."""
    return PlannedTopic(
        topic.name, Use.SOURCE, topic.partitions, {"cleanup.policy": "compact"} if topic.compacted else {}
    )


def dlq_topic(name: str) -> PlannedTopic:
    """How a job's topic of dead letters is created."""
    return PlannedTopic(name, Use.DEAD_LETTERS, _DLQ_PARTITIONS, _DLQ_CONFIG)


def audit_topic() -> PlannedTopic:
    """How the topic that anchors the audit is created: one partition, so that rows stand in their order, for ever."""
    return PlannedTopic(AUDIT_TOPIC, Use.AUDIT, 1, {"cleanup.policy": "delete", "retention.ms": "-1"})


async def create_missing(
    settings: KafkaSettings, topics: Sequence[PlannedTopic], *, replication: int = -1
) -> Sequence[FoundTopic]:
    """All of `topics` exist; returns what there is now, in the order given. Those that existed are left as they are.

    `replication` -1 lets the broker choose. Raises Misconfigured.
    """
    created: set[str] = set()
    for config, group in _by_config(topics):
        wanted = {topic.name: topic.partitions for topic in group}
        created.update(await create_topics(settings, wanted, replication=replication, configs=config))
    return await _describe(settings, topics, created)


def _by_config(topics: Iterable[PlannedTopic]) -> list[tuple[Mapping[str, str], list[PlannedTopic]]]:
    groups: dict[tuple[tuple[str, str], ...], list[PlannedTopic]] = {}
    for topic in topics:
        groups.setdefault(tuple(sorted(topic.config.items())), []).append(topic)
    return [(dict(config), group) for config, group in groups.items()]


async def _describe(settings: KafkaSettings, topics: Sequence[PlannedTopic], created: set[str]) -> Sequence[FoundTopic]:
    found = []
    async with open_reader(settings) as reader:
        for topic in topics:
            try:
                # A new topic reaches every broker's metadata a little later than its creation is answered.
                now = len(await reader.partitions_of(topic.name)) or topic.partitions
            except Transient as error:
                raise Misconfigured(f"kafka at {settings.bootstrap} does not tell its topics: {error}") from error
            found.append(FoundTopic(topic.name, topic.use, now, topic.name in created))
    return found
