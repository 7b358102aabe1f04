"""From events to the application's handlers. The host decides nothing about the business."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

from consumers.decoding import Arrival
from consumers.dispatch import Prepared
from tidegate.jobs.blaming import Blaming
from tidegate.jobs.context import Context, HandlerConnection
from tidegate.jobs.declaration import Dependency
from tidegate.jobs.handlers import Handler
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import TidegateError, Transient
from tidegate_kernel.event import JobCode, Scope, TopicPartition
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing


class HandlerTimedOut(TidegateError):
    """A handler ran into the job's `handler_timeout` and was cut off."""


class NoHandler(TidegateError):
    """An event became a command that no handler of the App takes."""


class _Task(NamedTuple):
    arrival: Arrival
    command: Any
    handler: Handler


class Mediator:
    """`Dispatcher` of one job: finds each command's handler and gives it a Context."""

    def __init__(
        self,
        job: JobCode,
        handlers: Mapping[type[Any], Handler],
        *,
        deps: Any,
        clock: Clock,
        timeout: timedelta,
        threads: ThreadPoolExecutor,
        dependencies: Sequence[Dependency] = (),
    ) -> None:
        self._job, self._handlers, self._deps, self._clock = job, handlers, deps, clock
        self._timeout, self._threads = timeout.total_seconds(), threads
        self._transient = {kind: dependency.name for dependency in dependencies for kind in dependency.transient}
        self.takes_groups = any(handler.takes_group for handler in handlers.values())
        self._in_hand: dict[TopicPartition, Callable[[], Arrival]] = {}
        self.last_progress = 0.0
        self.prepares = any(handler.prepare for handler in handlers.values())

    async def prepare(self, arrival: Arrival) -> Any:
        """Returns what the handler's `prepare` gives for this event, None where it has none. Raises HandlerFailed."""
        with self._working(lambda: arrival), Blaming(lambda: arrival, self._translated):
            task = self._task(arrival)
            if task is None or task.handler.prepare is None:
                return None
            async with self._time_limit():
                return await task.handler.prepare(task.command, self._deps)

    async def dispatch(
        self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared
    ) -> Sequence[Outgoing]:
        """Runs the handlers, in order per key. Raises HandlerFailed for the first that fails or takes too long."""
        db = HandlerConnection(connection)
        published: list[Outgoing] = []
        current = arrivals[0]
        with self._working(lambda: current), Blaming(lambda: current, self._translated):
            # One timer for all calls, moved on: arming one for each would cost more than a small handler.
            async with self._time_limit() as limit:
                for group in self._groups(arrivals):
                    current = group[0].arrival
                    self._rearm(limit)
                    published += await self._call(group, db, prepared)
        return published

    async def ask(self, arrival: Arrival, connection: Connection) -> Any:
        """Returns what the handler of the query that `arrival` becomes answers. Raises HandlerFailed."""
        with self._working(lambda: arrival), Blaming(lambda: arrival, self._translated):
            task = self._task(arrival)
            if task is None:
                return None
            context = self._context([task], HandlerConnection(connection))
            async with self._time_limit():
                return await task.handler.function(task.command, context)

    def at_work(self, partition: TopicPartition) -> str | None:
        """The handler that runs for `partition` now."""
        current = self._in_hand.get(partition)
        return None if current is None else self.handler_name(current())

    @contextmanager
    def _working(self, current: Callable[[], Arrival]) -> Iterator[None]:
        record = current().record
        partition = TopicPartition(record.topic, record.partition)
        self._in_hand[partition] = current
        try:
            yield
        finally:
            self._in_hand.pop(partition, None)

    def handler_name(self, arrival: Arrival) -> str:
        """The handler's dotted name, or the mapping function's where it makes no command."""
        try:
            task = self._task(arrival)
        except Exception:
            task = None
        if task is not None:
            return task.handler.name
        return str(getattr(arrival.route.function, "__qualname__", ""))

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[asyncio.Timeout]:
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._rearm(limit)
                yield limit
        except TimeoutError:
            if limit.expired():
                raise HandlerTimedOut(f"cut off after {self._timeout:g} s (handler_timeout)") from None
            raise  # a time-out of the handler's own calls is transient

    def _rearm(self, limit: asyncio.Timeout) -> None:
        # The event loop's clock is the monotonic one; a long batch of slow handlers is alive all the while.
        self.last_progress = asyncio.get_running_loop().time()
        limit.reschedule(self.last_progress + self._timeout)

    def _groups(self, arrivals: Sequence[Arrival]) -> Iterator[Sequence[_Task]]:
        if not self.takes_groups:
            for arrival in arrivals:
                if (task := self._task(arrival)) is not None:
                    yield (task,)
            return
        yield from _groups_by_scope([task for arrival in arrivals if (task := self._task(arrival)) is not None])

    def _task(self, arrival: Arrival) -> _Task | None:
        command = arrival.route.function(arrival.event)
        if command is None:
            return None
        handler = self._handlers.get(type(command))
        if handler is None:
            raise NoHandler(
                f"no handler takes {type(command).__name__}; add handle({type(command).__name__}, …) to App"
            )
        return _Task(arrival, command, handler)

    async def _call(self, group: Sequence[_Task], db: HandlerConnection, prepared: Prepared) -> Sequence[Outgoing]:
        handler, context = group[0].handler, self._context(group, db)
        if handler.takes_group:
            await handler.function([task.command for task in group], context)
        elif handler.prepare is not None:
            await handler.function(group[0].command, context, prepared.get(group[0].arrival.record.offset))
        else:
            await handler.function(group[0].command, context)
        return context.published

    def _context(self, group: Sequence[_Task], db: HandlerConnection) -> Context[Any]:
        events = [task.arrival.event for task in group]
        return Context(job=self._job, events=events, db=db, deps=self._deps, clock=self._clock, threads=self._threads)

    def _translated(self, error: Exception) -> Exception:
        """What a dependency lists as transient is its outage, not the event's fault."""
        for kind, name in self._transient.items():
            if isinstance(error, kind):
                away = Transient(f"dependency {name!r}: {type(error).__name__}")
                away.__cause__ = error
                return away
        return error


def _groups_by_scope(tasks: Sequence[_Task]) -> Iterator[Sequence[_Task]]:
    """Tasks of one scope together (a key has one scope), then runs of one handler, so that a key's order stays."""
    by_scope: dict[Scope, list[_Task]] = {}
    for task in tasks:
        by_scope.setdefault(task.arrival.event.scope, []).append(task)
    # Sorted: two batches that write to the same scopes lock their rows in one order.
    for _, scoped in sorted(by_scope.items(), key=lambda item: (item[0].tenant, item[0].brand)):
        for _, run in groupby(scoped, key=lambda task: id(task.handler)):
            group = list(run)
            if group[0].handler.takes_group:
                yield group
            else:
                yield from ([task] for task in group)
