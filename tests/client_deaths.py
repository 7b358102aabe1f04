"""Ways in which a Kafka client dies: one of the tasks that it runs on meets an error that it does not expect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tidegate_kernel.source import ClientDied, RecordSource


class Struck(RuntimeError):
    """What the client does not expect."""


def _strike(*_: Any, **__: Any) -> Any:
    raise Struck("the handler is closed")


def strike(part: Any, method: str) -> None:
    """The next call of `method` ends whichever task makes it."""
    setattr(part, method, _strike)


def _metadata(consumer: Any) -> None:
    consumer._client._metadata_update = _strike
    consumer._client.force_metadata_update()


def _fetch(consumer: Any) -> None:
    consumer._fetcher._get_actions_per_node = _strike


def _coordination(consumer: Any) -> None:
    consumer._coordinator.need_rejoin = _strike
    consumer._coordinator.request_rejoin()


def _heartbeat(consumer: Any) -> None:
    consumer._coordinator._do_heartbeat = _strike


def _committed(consumer: Any) -> None:
    consumer._coordinator._maybe_refresh_commit_offsets = _strike
    consumer._subscription.subscription.assignment.commit_refresh_needed.set()


def _reset_committed(consumer: Any) -> None:
    assignment = consumer._subscription.subscription.assignment
    assignment.requesting_committed = _strike
    assignment.commit_refresh_needed.set()


OF_A_MEMBER: Mapping[str, Callable[[Any], None]] = {
    "metadata": _metadata,
    "fetch": _fetch,
    "coordination": _coordination,
    "heartbeat": _heartbeat,
    "committed": _committed,
}
OF_A_READER: Mapping[str, Callable[[Any], None]] = {
    "metadata": _metadata,
    "fetch": _fetch,
    "reset-committed": _reset_committed,
}
ALL: Mapping[str, Callable[[Any], None]] = {**OF_A_MEMBER, **OF_A_READER}


async def until_dead(source: RecordSource, *, seconds: float = 10) -> ClientDied:
    """Returns how `source` tells that its client has died."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                source.require_alive()
            except ClientDied as error:
                return error
            await asyncio.sleep(0.01)  # a task that ends tells nobody of it
