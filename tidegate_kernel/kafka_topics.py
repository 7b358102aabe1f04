"""Topics that a service needs are made here, and only what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.kafka_close import close_admin
from tidegate_kernel.kafka_options import connection_options
from tidegate_kernel.kafka_reach import started
from tidegate_kernel.settings import KafkaSettings

_KNOWN_SECONDS = 10.0
_LOOK_SECONDS = 0.05


async def create_topics(
    settings: KafkaSettings,
    topics: Mapping[str, int],
    *,
    replication: int = -1,
    configs: Mapping[str, str] | None = None,
) -> list[str]:
    """Creates the missing ones of `topics` (name → partitions); returns the names that were created.

    A broker that took the order may not know of it for a moment: the next command must not find the topic missing.
    """
    admin = AIOKafkaAdminClient(**connection_options(settings))
    async with started(admin, settings, close=close_admin):
        created = []
        for name, partitions in topics.items():
            new = NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))
            # The broker knows -1 as its own default; the client's constructor refuses it.
            new.replication_factor = replication
            try:
                answer = await admin.create_topics([new])
                _raise_refused(name, answer)
            except TopicAlreadyExistsError:
                continue
            except KafkaError as error:
                raise Misconfigured(f"topic {name!r} cannot be created ({type(error).__name__}: {error})") from error
            created.append(name)
        await _until_known(admin, created)
        return created


async def _until_known(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Returns once the broker describes all of them, or after a while: what is missing then is told by who needs it."""
    with suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_KNOWN_SECONDS):
            missing = list(names)
            while missing:
                missing = [each["topic"] for each in await admin.describe_topics(missing) if each["error_code"]]
                await asyncio.sleep(_LOOK_SECONDS if missing else 0)


def _raise_refused(name: str, answer: Any) -> None:
    for topic, code, *_ in answer.topic_errors:
        if topic == name and code:
            raise for_code(code)(f"topic {name!r}")
