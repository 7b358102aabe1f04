"""The port from the road to the application's command handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from consumers.decoding import Arrival
from tidegate_kernel.errors import TidegateError
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing

Prepared = Mapping[int, Any]
"""Results of `prepare` by record offset."""


class HandlerFailed(TidegateError):
    """The application's own code raised; `cause` is what, `arrival` for which event (the first of a group)."""

    def __init__(self, arrival: Arrival, cause: Exception) -> None:
        super().__init__(f"handler failed: {type(cause).__name__}")
        self.arrival = arrival
        self.cause = cause


def hidden_failure(error: BaseException | None) -> HandlerFailed | None:
    """The handler's failure under the trouble that it made: a broken connection fails once more when it is left."""
    while error is not None and not isinstance(error, HandlerFailed):
        error = error.__cause__ or error.__context__
    return error


class Dispatcher(Protocol):
    """Turns events into commands and gives them to their handlers. Decides nothing about the business."""

    @property
    def takes_groups(self) -> bool:
        """Whether some handler takes a list: failures are then found by halving."""

    async def prepare(self, arrival: Arrival) -> Any:
        """Runs the slow part of the event's handler outside any transaction. Raises HandlerFailed."""

    @property
    def prepares(self) -> bool:
        """Whether any handler has a slow part."""

    async def dispatch(
        self, arrivals: Sequence[Arrival], connection: Connection, prepared: Prepared
    ) -> Sequence[Outgoing]:
        """Runs the handlers in the caller's transaction, in order per key; returns what they published.

        Raises HandlerFailed at the first failure, also when a handler exceeds its time limit.
        """

    def handler_name(self, arrival: Arrival) -> str:
        """What a dead letter calls the handler."""
