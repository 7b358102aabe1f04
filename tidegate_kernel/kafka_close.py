"""Closing a client whatever state it is in.

Its own `stop` waits without bound for what may never come, and ends at the first error, also one that is long past:
what comes after that stays open, and a member whose heartbeats go on keeps partitions that nobody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest

from tidegate_kernel.kafka_life import COORDINATION, FETCH, MEMBERSHIP, METADATA, tasks_of

# A rebalance under way when the member leaves: others hear of it with their next heartbeats, and leaving in the middle
# of it would keep them waiting for us until our session ends. A client that hangs must not hold a stop up for longer.
_REBALANCE_SECONDS = 5.0
# A round trip or two. The first try may find that its connection has broken.
_LEAVE_SECONDS = 2.0
_LEAVE_TRIES = 2
# Every task of the client ends within one turn of the event loop once it is cancelled.
_CANCEL_SECONDS = 2.0
# What was written is on its way, unless the other end takes nothing.
_FLUSH_SECONDS = 1.0


async def close_consumer(consumer: Any) -> None:
    """The group is left, no task of `consumer` runs, its connections are closed. Raises nothing. Idempotent."""
    if consumer._closed:
        return
    consumer._closed = True
    if consumer._coordinator is not None:
        await _close_coordinator(consumer._coordinator)
    if consumer._fetcher is not None:
        await _close_fetcher(consumer._fetcher)
    await close_client(consumer._client)


async def close_producer(producer: Any, *, flush_seconds: float) -> None:
    """As `close_consumer`. What is still to be sent has `flush_seconds` for it and is forgotten then."""
    if producer._closed:
        return
    producer._closed = True
    sender = getattr(producer._sender, "_sender_task", None)
    if sender is not None and not sender.done() and flush_seconds > 0:
        await _ended(producer._message_accumulator.close(), flush_seconds)
    if sender is not None:
        await _end([sender])
    await close_client(producer.client)


async def close_admin(admin: Any) -> None:
    """As `close_consumer`."""
    if not admin._closed:
        admin._closed = True
        await close_client(admin._client)


async def close_client(client: Any) -> None:
    """Its metadata task has ended, its connections are closed."""
    await _end(tasks_of(client, METADATA).values())
    client._sync_task = None
    connections = [each for each in client._conns.values() if each._writer is not None]
    transports = [each._writer.transport for each in connections]
    flushed = [each.close() for each in connections]
    if flushed:
        _, unflushed = await asyncio.wait(flushed, timeout=_FLUSH_SECONDS)
        if unflushed:
            for transport in transports:
                transport.abort()


async def _close_coordinator(coordinator: Any) -> None:
    if not hasattr(coordinator, "_closing"):  # that of a reader outside any group
        await _end(tasks_of(coordinator, COORDINATION).values())
        return
    if not coordinator._closing.done():
        coordinator._closing.set_result(None)
    await asyncio.wait([coordinator._coordination_task], timeout=_REBALANCE_SECONDS)
    await _end(tasks_of(coordinator, COORDINATION | MEMBERSHIP).values())
    coordinator._heartbeat_task = coordinator._commit_refresh_task = None
    await _ended(_leave(coordinator), _LEAVE_SECONDS)


async def _leave(coordinator: Any) -> None:
    """The group knows that the member is gone; else it waits for the end of its session. A static member stays."""
    if coordinator.generation <= 0 or coordinator._group_instance_id is not None:
        return
    for _ in range(_LEAVE_TRIES):
        try:
            if coordinator.coordinator_id is None:
                found = await coordinator._client.coordinator_lookup(CoordinationType.GROUP, coordinator.group_id)
                coordinator.coordinator_id = found
            await coordinator._send_req(LeaveGroupRequest(coordinator.group_id, coordinator.member_id))
        except KafkaError:
            continue
        return


async def _close_fetcher(fetcher: Any) -> None:
    fetcher._closed = True
    await _end([*tasks_of(fetcher, FETCH).values(), *fetcher._pending_tasks])
    for waiter in list(fetcher._fetch_waiters):
        fetcher._notify(waiter)


async def _ended(work: Coroutine[Any, Any, Any], seconds: float) -> None:
    """`work` has ended, in whichever way, or was cut off."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        await _end([task])


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """None of `tasks` runs any more. How each has ended is of no interest now."""
    all_of_them = list(tasks)
    for task in all_of_them:
        task.cancel()
    if all_of_them:
        await asyncio.wait(all_of_them, timeout=_CANCEL_SECONDS)
    for task in all_of_them:
        if task.done() and not task.cancelled():
            task.exception()  # asked for, or the event loop complains that nobody did
