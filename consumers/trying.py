"""How handlers are tried: all events of a batch at once, and where that fails, each by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from consumers.batch import Attempts
from consumers.dispatch import HandlerFailed, hidden_failure
from consumers.judging import Judge
from tidegate_kernel.errors import Transient

# An outage is mostly over by then, or its breaker open; then the batch is looked at event by event.
_TRIES_AS_A_WHOLE = 3

Made = TypeVar("Made")


async def as_a_whole_or_apart(
    attempts: Attempts, judge: Judge, *, whole: Callable[[], Awaitable[Made]], apart: Callable[[], Awaitable[Made]]
) -> Made:
    """Returns what one of the two made, each in a transaction of its own; once apart, `attempts` stay so.

    Raises Transient: roll back, wait, try again with the same attempts.
    """
    if not attempts.is_isolating:
        try:
            return await whole()
        except HandlerFailed as failed:
            await judge.raise_if_worth_a_repeat(attempts, failed)
        except asyncpg.PostgresError:
            # A handler that broke the transaction and swallowed the error shows only in our statements after it.
            pass
        except Transient as error:
            if (hidden := hidden_failure(error)) is not None:
                await judge.raise_if_worth_a_repeat(attempts, hidden)
            elif not _may_be_a_handlers(error, attempts):
                raise
        # Isolating mode tells whose fault it is.
        attempts.is_isolating = True
    return await apart()


def _may_be_a_handlers(error: Transient, attempts: Attempts) -> bool:
    """Whether trouble on the way to Postgres may come from a handler that returned as if nothing had happened.

    The COMMIT also runs the deferred constraints of its tables; a connection that it closed fails in our statements.
    """
    return isinstance(error.__cause__, asyncpg.QueryCanceledError) or attempts.tries >= _TRIES_AS_A_WHOLE
