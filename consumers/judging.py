"""Whose fault a handler's failure is, and how often the event may be tried again: the one rule for every attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumers.batch import Attempts
from consumers.dispatch import HandlerFailed
from consumers.failure import FailureClass, RetryPolicy, classify, poison_reason
from tidegate_kernel.errors import Reason, RetryLater, Transient


class Judge:
    """Judges by a job's policy. `probe` says whether everything that its handlers need answers now."""

    def __init__(self, policy: RetryPolicy, probe: Callable[[], Awaitable[bool]]) -> None:
        self._policy, self._probe = policy, probe

    async def raise_if_nobodys_fault(self, error: Exception) -> None:
        """Raises Transient where no record may pay for `error`: a collision, or an outage, which burns no attempt."""
        match classify(error):
            case FailureClass.COLLISION:
                raise Transient(f"collided with another transaction: {type(error).__name__}") from error
            case FailureClass.FULL:
                raise Transient(f"postgres has no room to write: {type(error).__name__}") from error
            case FailureClass.TRANSIENT if not await self._probe():
                raise Transient(f"postgres or a dependency is away: {type(error).__name__}") from error
            case _:
                return

    async def raise_if_worth_a_repeat(self, attempts: Attempts, failed: HandlerFailed) -> None:
        """Raises Transient where the batch should be repeated as a whole, which cures a transient failure.

        Returns where a single event has to pay, and for the last attempt, which looks whose fault it is.
        """
        error = failed.cause
        await self.raise_if_nobodys_fault(error)
        failure = classify(error)
        if failure is not FailureClass.TRANSIENT:
            return
        if attempts.count(failed.arrival.record.offset, failure) < self._policy.attempts - 1:
            after = error.after if isinstance(error, RetryLater) else 0.0
            raise RetryLater(f"the handler's {type(error).__name__}", after=after) from error

    async def verdict(self, attempts: Attempts, failed: HandlerFailed) -> Reason | None:
        """The reason to give up on the event that failed alone, or None to try it again. Raises Transient."""
        error = failed.cause
        await self.raise_if_nobodys_fault(error)
        failure = classify(error)
        if failure is FailureClass.POISON:
            return poison_reason(error)
        burnt = attempts.count(failed.arrival.record.offset, failure)
        if failure is FailureClass.TRANSIENT:
            return Reason.RETRIES_EXHAUSTED if burnt >= self._policy.attempts else None
        return Reason.HANDLER_FAILED if burnt >= self._policy.unexpected_attempts else None
