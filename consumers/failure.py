"""Which class a handler's failure belongs to, and what the retry policies are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

import asyncpg
from tenacity import RetryCallState, wait_exponential, wait_random

from tidegate_kernel.errors import Poison, Reason, RetryLater, Transient
from tidegate_kernel.postgres import is_transient

# 22021 character not in repertoire (NUL in text), 22P05 untranslatable character: the same bytes fail for ever.
_INVALID_TEXT_STATES = frozenset({"22021", "22P05"})
# 40001 serialization failure, 40P01 deadlock detected: the victim was chosen at random.
_COLLISION_STATES = frozenset({"40001", "40P01"})
# 53100 disk full: reads, and so the probe, are answered as ever, while no record's statement can be at fault.
_FULL_STATE = "53100"
# A migration changed what the driver remembers of a table; it has forgotten that by the time it says so.
_MIGRATED_MEANWHILE = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)


class FailureClass(Enum):
    """What the road does next."""

    POISON = auto()
    COLLISION = auto()
    """Two transactions were in each other's way, or a migration in one's: none is at fault, the repeat will pass."""
    FULL = auto()
    """Postgres has no room left to write: an outage, though it answers its probe."""
    TRANSIENT = auto()
    UNEXPECTED = auto()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failing batch is tried again, always outside any transaction.

    `attempts` bounds transient failures of a handler while its dependencies answer; an outage counts none.
    `unexpected_attempts` bounds every other exception. `crash_attempts` bounds how often a record whose handling ends
    the process is begun.
    """

    name: str = "default"
    attempts: int = 8
    unexpected_attempts: int = 3
    crash_attempts: int = 3
    first_delay: timedelta = timedelta(milliseconds=100)
    # A store that refuses (429) while it answers its probe has to be found well again within five seconds.
    longest_delay: timedelta = timedelta(seconds=4)

    def delay(self, tries: int, error: BaseException) -> float:
        """Seconds to wait after the failed try number `tries` (1 = the first)."""
        state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]  # only the attempt number is read
        state.attempt_number = min(tries, 32)  # 2**32 times the first delay is past every limit
        first, longest = self.first_delay.total_seconds(), self.longest_delay.total_seconds()
        wait = wait_exponential(multiplier=first, max=longest) + wait_random(0, first)
        asked = error.after if isinstance(error, RetryLater) else 0.0
        return max(asked, min(longest, wait(state)))


def classify(error: BaseException) -> FailureClass:
    """The class of what a handler raised."""
    if isinstance(error, Poison) or getattr(error, "sqlstate", None) in _INVALID_TEXT_STATES:
        return FailureClass.POISON
    if getattr(error, "sqlstate", None) in _COLLISION_STATES or isinstance(error, _MIGRATED_MEANWHILE):
        return FailureClass.COLLISION
    if getattr(error, "sqlstate", None) == _FULL_STATE:
        return FailureClass.FULL
    if isinstance(error, Transient) or _is_connection_trouble(error):
        return FailureClass.TRANSIENT
    return FailureClass.UNEXPECTED


def poison_reason(error: BaseException) -> Reason:
    """The dead letter's reason for an error of class POISON."""
    return error.reason if isinstance(error, Poison) else Reason.INVALID_TEXT


def _is_connection_trouble(error: BaseException) -> bool:
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        return is_transient(error)
    # A handler's time-out of its own (TimeoutError) is a dependency's; a file that is missing is not.
    return isinstance(error, (ConnectionError, TimeoutError))
