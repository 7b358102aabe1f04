"""How long Kafka keeps the records of a topic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError, for_code

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka_close import close_admin
from tidegate_kernel.kafka_options import connection_options
from tidegate_kernel.kafka_reach import started, unusable
from tidegate_kernel.settings import KafkaSettings

_NOT_ALLOWED = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
_NAMES = ("cleanup.policy", "retention.ms", "segment.ms")
# A timedelta holds less than what Kafka takes for a number of milliseconds; beyond a century it is for ever anyway.
_CENTURY = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Retention:
    """`kept` is None where records stay for ever. A segment is only removed as a whole: what is in it stays longer."""

    kept: timedelta | None
    segment: timedelta
    is_compacted: bool = False


async def read_retention(settings: KafkaSettings, topics: Collection[str]) -> Mapping[str, Retention]:
    """Returns the retention of each topic that this client may ask about.

    Raises Misconfigured if Kafka does not answer.
    """
    admin = AIOKafkaAdminClient(**connection_options(settings))
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(_NAMES)) for name in sorted(topics)]
    async with started(admin, settings, close=close_admin):
        try:
            answers = await admin.describe_configs(resources) if resources else []
        except (KafkaError, OSError) as error:
            raise unusable(settings, f"topic settings: {type(error).__name__}: {error}", error) from error
    found = {}
    for answer in answers:
        for code, _, _, name, entries in answer.resources:
            if code and for_code(code) not in _NOT_ALLOWED:
                raise Misconfigured(f"kafka does not tell the settings of topic {name!r}: {for_code(code).__name__}")
            if not code:
                found[name] = retention_of({entry[0]: entry[1] for entry in entries})
    return found


def retention_of(config: Mapping[str, Any]) -> Retention:
    """Returns what a topic's settings come to."""
    policies = set(str(config.get("cleanup.policy") or "delete").replace(" ", "").split(","))
    kept = _period(config.get("retention.ms")) if "delete" in policies else None
    return Retention(kept, _period(config.get("segment.ms")) or timedelta(0), is_compacted="compact" in policies)


def _period(milliseconds: Any) -> timedelta | None:
    """None for no limit: -1, or a time that nobody lives to see."""
    number = int(milliseconds)
    if number < 0 or number >= _CENTURY / timedelta(milliseconds=1):
        return None
    return timedelta(milliseconds=number)
