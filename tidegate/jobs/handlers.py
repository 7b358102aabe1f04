"""Which handler takes which command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from tidegate.jobs.clockwork.provider.pulling import Pulled
from tidegate.jobs.context import Context
from tidegate_kernel.errors import Misconfigured

CommandT = TypeVar("CommandT")
DepsT = TypeVar("DepsT")
PreparedT = TypeVar("PreparedT")


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler as it was declared; made by `handle` and `handle_batch`."""

    command: type[Any]
    function: Callable[..., Awaitable[Any]]
    prepare: Callable[..., Awaitable[Any]] | None = None
    takes_group: bool = False
    calls_outside: bool = False
    fetches: bool = False

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', 'handler')}"

    @property
    def stays_inside(self) -> bool:
        """Whether a rollback takes back all that it does, as far as it was declared."""
        return self.prepare is None and not self.calls_outside


@overload
def handle(
    command: type[CommandT],
    function: Callable[[CommandT, Context[DepsT]], Awaitable[None]],
    *,
    calls_outside: bool = False,
) -> Handler: ...
@overload
def handle(
    command: type[CommandT],
    function: Callable[[CommandT, Context[DepsT], PreparedT], Awaitable[None]],
    *,
    prepare: Callable[[CommandT, DepsT], Awaitable[PreparedT]],
) -> Handler: ...
def handle(
    command: type[Any],
    function: Callable[..., Awaitable[None]],
    *,
    prepare: Callable[..., Awaitable[Any]] | None = None,
    calls_outside: bool = False,
) -> Handler:
    """Declares that `function` handles each `command`, inside the transaction that holds the event's claim.

    `prepare(command, deps)` may be slow and runs before, outside any transaction; its result is the function's third
    argument. `calls_outside` says that the function does what no rollback takes back, such as sending a mail: then no
    rehearsal runs it. Raises Misconfigured for a plain (not async) function.
    """
    _require_async(function)
    if prepare is not None:
        _require_async(prepare)
    return Handler(command, function, prepare, calls_outside=calls_outside)


def handle_batch(
    command: type[CommandT],
    function: Callable[[Sequence[CommandT], Context[DepsT]], Awaitable[None]],
    *,
    calls_outside: bool = False,
) -> Handler:
    """Declares that `function` handles lists of `command`, all of one tenant and brand, in order per key.

    When a list fails it is called again with parts of it, to find the event at fault. `calls_outside`: as of `handle`.
    """
    _require_async(function)
    return Handler(command, function, takes_group=True, calls_outside=calls_outside)


def answer(query: type[CommandT], function: Callable[[CommandT, Context[DepsT]], Awaitable[Sequence[Any]]]) -> Handler:
    """Declares that `function` answers each `query` of a job by the clock with the items of a page, in their order.

    It reads: what it writes or publishes is rolled back.
    """
    _require_async(function)
    return Handler(query, function)


def fetch(query: type[CommandT], function: Callable[[CommandT, DepsT], Awaitable[Pulled]]) -> Handler:
    """Declares that `function(query, deps)` calls a provider once for a page of a ProviderSyncJob.

    It runs outside of any transaction, before the one that the page's items are settled in.
    """
    _require_async(function)
    return Handler(query, function, prepare=function, fetches=True)


def _require_async(function: Callable[..., Any]) -> None:
    has_its_own_code = inspect.isroutine(function) or isinstance(function, functools.partial)
    call = function if has_its_own_code else type(function).__call__
    if not inspect.iscoroutinefunction(call):
        raise Misconfigured(
            f"handler {getattr(function, '__qualname__', function)!r} is a plain function: make it 'async def' and "
            "call synchronous libraries with 'await ctx.thread(fn, …)'"
        )
