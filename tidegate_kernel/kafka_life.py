"""Whether a client is still at work. It runs on tasks of its own, and where one of them ends by an error it says so
late or never: records are not fetched, requests wait for a metadata update that never comes, the group is not told
that the member lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate_kernel.source import ClientDied


def require_alive(consumer: Any) -> None:
    """Raises ClientDied if one of the tasks of `consumer` has ended by itself. One that is closed is not dead."""
    if getattr(consumer, "_closed", False):
        return
    for name, task, is_endless in _tasks_of_consumer(consumer):
        _require(name, task, is_endless=is_endless)


def is_producer_alive(producer: Any) -> bool:
    """Whether the tasks that send what is handed to `producer` are at work."""
    tasks = (_part(producer, "client", "_sync_task"), _part(producer, "_sender", "_sender_task"))
    return not any(task is not None and task.done() for task in tasks)


def tasks_of(owner: Any, names: Mapping[str, str]) -> dict[str, asyncio.Task[Any]]:
    """Those of the named tasks that `owner` has; `names` are attributes by what we call them."""
    found = {ours: _part(owner, theirs) for ours, theirs in names.items()}
    return {name: task for name, task in found.items() if task is not None}


# What has to run for as long as the client does.
METADATA = {"metadata": "_sync_task"}
FETCH = {"fetch": "_fetch_task"}
COORDINATION = {"coordination": "_coordination_task", "reset-committed": "_reset_committed_task"}
# What also ends without an error: when the member is thrown out, when an assignment is over.
MEMBERSHIP = {"heartbeat": "_heartbeat_task", "committed": "_commit_refresh_task"}


def _tasks_of_consumer(consumer: Any) -> Iterator[tuple[str, asyncio.Task[Any], bool]]:
    for part, names, is_endless in (
        ("_client", METADATA, True),
        ("_fetcher", FETCH, True),
        ("_coordinator", COORDINATION, True),
        ("_coordinator", MEMBERSHIP, False),
    ):
        for name, task in tasks_of(_part(consumer, part), names).items():
            yield name, task, is_endless


def _require(name: str, task: asyncio.Task[Any], *, is_endless: bool) -> None:
    if not task.done():
        return
    error = None if task.cancelled() else task.exception()
    if error is not None:
        raise ClientDied(f"kafka client: its task {name!r} died: {_root(error)}") from error
    if is_endless:
        raise ClientDied(f"kafka client: its task {name!r} ended by itself")


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _part(owner: Any, *path: str) -> Any:
    """None where the client has no such part, or not yet."""
    for name in path:
        owner = getattr(owner, name, None)
    return owner
