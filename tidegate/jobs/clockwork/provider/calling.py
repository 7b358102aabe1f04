"""Calls of a provider: each waits for its place, and what comes of it is told to whoever else calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import structlog

from consumers.batch import Attempts
from consumers.decoding import Arrival
from consumers.dispatch import HandlerFailed
from consumers.failure import FailureClass, classify
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.clockwork.provider.gate import Admission, Gate
from tidegate.jobs.clockwork.provider.pulling import PageGone, Pulled, Throttled
from tidegate.jobs.clockwork.provider.retry_after import LEAST, LONGEST, UNSAID
from tidegate.jobs.clockwork.units import Interrupted, Outage, RunHands
from tidegate.jobs.mediator import HandlerTimedOut
from tidegate_kernel import logs
from tidegate_kernel.errors import Misconfigured, Poison, Transient
from tidegate_kernel.postgres import Pool

_log = structlog.get_logger(__name__)

PATIENCE = timedelta(seconds=10)
"""A run that would wait for longer, for one page and in all, is put back: others have its place meanwhile."""

# Others may have heard meanwhile that the provider wants to be left alone.
_LONG_WAIT_SECONDS = 1.0


class LeftAlone(Transient):
    """Nobody calls the provider now; it is worth asking again after `rest`."""

    def __init__(self, provider: str, rest: timedelta) -> None:
        super().__init__(f"provider {provider!r} is left alone for {rest.total_seconds():.0f} s")
        self.rest = rest


class CallOutcome(StrEnum):
    """What came of a call: a page; a pause that the provider asks for; a refusal of the question; no answer."""

    ANSWERED = "answered"
    THROTTLED = "throttled"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Supply:
    """What the runs of a job in this process reach their provider through."""

    service: str
    gate: Gate


def gate_of(service: str, job: ProviderSyncJob, pool: Pool) -> Gate:
    """The gate that the job's runs pass, with all others of the service that call this provider."""
    return Gate(
        pool,
        service=service,
        provider=job.provider,
        rate_limit=job.rate_limit,
        circuit=job.circuit,
        call_timeout=job.handler_timeout,
    )


class Calls:
    """The calls of one run, one after the other, each counted by what came of it."""

    def __init__(self, supply: Supply, hands: RunHands) -> None:
        self._gate, self._hands = supply.gate, hands
        self._patient_until = 0.0

    async def pull(self, page: Arrival) -> Pulled:
        """Returns the provider's page. No transaction is open meanwhile.

        Raises PageGone; HandlerFailed where the page cannot be had; LeftAlone or Outage where nobody is at fault, so
        that no attempt is burnt; Interrupted where the process is to end; Transient.
        """
        attempts = Attempts()
        self._patient_until = self._hands.clock.monotonic() + PATIENCE.total_seconds()
        while True:
            admission = await self._admitted()
            try:
                answer = await self._hands.mediator.prepare(page)
            except HandlerFailed as failed:
                await self._tell(failed.cause, admission)
                await self._rest(failed, attempts)
                continue
            await self._gate.answered(admission)
            self._count(CallOutcome.ANSWERED)
            if not isinstance(answer, Pulled):
                raise Misconfigured(
                    f"job {self._hands.job.code!r}: its query's handler answers with {type(answer).__name__}, "
                    "not with a Pulled"
                )
            return answer

    async def _admitted(self) -> Admission:
        while True:
            admission = await self._gate.admit(patience=PATIENCE)
            wait_seconds = admission.wait_seconds
            if not admission.is_admitted:
                self._require_patience(wait_seconds)
            await self._wait(wait_seconds)
            if admission.is_trial or (admission.is_admitted and wait_seconds < _LONG_WAIT_SECONDS):
                return admission
            if admission.is_admitted and not await self._gate.is_left_alone():
                return admission

    def _require_patience(self, wait_seconds: float) -> None:
        """Raises LeftAlone: pauses that are short, but never end, would keep the run from whoever wants it to end."""
        if self._hands.clock.monotonic() + wait_seconds > self._patient_until:
            raise LeftAlone(self._gate.provider, timedelta(seconds=wait_seconds))

    async def _tell(self, error: Exception, admission: Admission) -> None:
        """Everybody who calls the provider knows what this call has come to."""
        self._count(_outcome_of(error))
        if isinstance(error, Throttled):
            seconds = _pause_of(error)
            await self._gate.pause(seconds)
            _log.warning(logs.PROVIDER_THROTTLED, provider=self._gate.provider, seconds=round(seconds, 1))
        if isinstance(error, Throttled | Poison | PageGone):
            await self._gate.answered(admission)
        elif classify(error) is FailureClass.TRANSIENT or isinstance(error, HandlerTimedOut):
            await self._gate.failed(admission)

    def _count(self, outcome: CallOutcome) -> None:
        self._hands.metrics.provider_calls.labels(self._hands.job.code, outcome).inc()

    async def _rest(self, failed: HandlerFailed, attempts: Attempts) -> None:
        """Returns when the call is to be made again. Raises what `pull` does."""
        error = failed.cause
        if isinstance(error, Throttled):
            self._require_patience(_pause_of(error))
            return
        if isinstance(error, PageGone):
            raise error from None  # the page is what is wrong, and not who asked for it
        try:
            reason = await self._hands.judge.verdict(attempts, failed)
        except Transient as nobodys:
            raise Outage(str(nobodys)) from error
        if reason is not None:
            raise failed
        await self._wait(self._hands.job.retry.delay(attempts.made_at(failed.arrival.record.offset), error))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hands.stop.wait()
        except TimeoutError:
            return
        raise Interrupted("the process is to end")


def _outcome_of(error: Exception) -> CallOutcome:
    match error:
        case Throttled():
            return CallOutcome.THROTTLED
        case Poison() | PageGone():
            return CallOutcome.REFUSED
        case _:
            return CallOutcome.FAILED


def _pause_of(error: Throttled) -> float:
    return UNSAID if error.said is None else min(max(error.said, LEAST), LONGEST)
