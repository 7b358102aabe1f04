"""A run from its claim to its end: lease, scope, batches by a stable key, units, checkpoint, release."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from consumers.dispatch import HandlerFailed
from dlq.cause import Cause, cause_of
from tidegate.jobs.blaming import Blaming
from tidegate.jobs.clockwork.items import Item, Items, units_of
from tidegate.jobs.clockwork.ordering import PageOrder
from tidegate.jobs.clockwork.runs import (
    LEASE_TTL,
    ClaimedRun,
    RunState,
    Wish,
    cursor_of,
    end_run,
    give_back_items,
    is_outbox_full,
    items_of_replay,
    names_of,
    progress_of,
    put_back,
    retry_run,
    state_under,
)
from tidegate.jobs.clockwork.units import Interrupted, ItemFailed, RunHands, Units
from tidegate_kernel import logs
from tidegate_kernel.errors import Denied, LeaseLost, Misconfigured, Poison, Reason, TidegateError, Transient
from tidegate_kernel.lease import Lease
from tidegate_kernel.postgres import Connection
from tidegate_kernel.tracing import AttributeValue, run_span

_log = structlog.get_logger(__name__)

# A run that waits for something that is away lets others have its place, and looks again so soon.
_OUTAGE_REST = timedelta(seconds=15)
_AGAIN_SECONDS = 1.0
_LONGEST_LOGGED = 500


class OverTime(TidegateError):
    """A run took longer than its job's `max_duration` and was cut off."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run leaves its holder. DUE: it is put back, to go on in `rest`. `is_final`: no retry would help.

    `also` is written in the transaction that ends the run. `checkpoint`: where the run stands then, for the log; None
    where there is none.
    """

    state: RunState
    why: str = ""
    cause: Cause | None = None
    is_final: bool = False
    rest: timedelta = timedelta(0)
    also: Callable[[Connection], Awaitable[None]] | None = None
    checkpoint: str | None = None


async def work_off(hands: RunHands, run: ClaimedRun, *, ttl: timedelta = LEASE_TTL) -> RunState | None:
    """The run is done as far as this process can; returns how it stands then, None if another process has it.

    The lease must have been claimed just now. Whatever this process does after another has taken it is rolled back.
    """
    lease = Lease(hands.pool, run.lock_name, holder=str(run.id), ttl=ttl)
    told = names_of(hands.job.code, run)
    with structlog.contextvars.bound_contextvars(**told), run_span(_attributes(told)) as span:
        began = hands.clock.monotonic()
        _log.info(logs.RUN_STARTED, trigger=run.trigger, attempt=run.attempt, missed=run.missed)
        try:
            async with lease.keep(run.token):
                ending = await _worked(hands, run)
                await _Closing(hands, run, ending).close()
        except LeaseLost as error:
            _log.warning(logs.RUN_LOST, error=str(error))
            return None
        seconds = hands.clock.monotonic() - began
        hands.metrics.runs.labels(hands.job.code, ending.state).inc()
        hands.metrics.run_seconds.labels(hands.job.code).observe(seconds)
        span.ended(ending.state, error=None if ending.cause is None else ending.cause.error_class)
        _tell(ending, seconds)
        return ending.state


def _attributes(told: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {f"tidegate.{name}": value for name, value in told.items()}


def _tell(ending: Ending, seconds: float) -> None:
    told = {"state": ending.state, "seconds": round(seconds, 3), "checkpoint": logged(ending.checkpoint)}
    if ending.cause is not None:
        _log.error(logs.RUN_FAILED, **told, error_class=ending.cause.error_class, error=ending.cause.message)
    else:
        _log.info(logs.RUN_ENDED, **told, **({"why": ending.why} if ending.why else {}))


async def _worked(hands: RunHands, run: ClaimedRun) -> Ending:
    """Works until there is nothing more to do, or something ends it; returns what. Raises LeaseLost."""
    limit = asyncio.timeout(hands.job.max_duration.total_seconds())
    road = None
    try:
        async with limit:
            road = (hands.road or Road)(hands, run)
            ending: Ending = await road.work()
    except LeaseLost:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            ending = _failed(
                OverTime(f"cut off after {hands.job.max_duration} (max_duration); what it has done stands")
            )
        else:
            ending = await _ending_of(hands, error)
    return ending if road is None else replace(ending, checkpoint=road.checkpoint)


async def _ending_of(hands: RunHands, error: Exception) -> Ending:
    match error:
        case ItemFailed():
            return Ending(RunState.FAILED, cause=error.cause, is_final=error.is_final)
        case HandlerFailed():
            return await _query_failed(hands, error)
        case Interrupted():
            return Ending(RunState.DUE, why=str(error))
        case Transient():
            return Ending(RunState.DUE, why=str(error), rest=_OUTAGE_REST)
        case _:
            return _failed(error, is_final=isinstance(error, Misconfigured | Denied))


def _failed(error: Exception, *, is_final: bool = False) -> Ending:
    return Ending(RunState.FAILED, cause=cause_of(error, Reason.HANDLER_FAILED), is_final=is_final)


async def _query_failed(hands: RunHands, failed: HandlerFailed) -> Ending:
    """Of what does not belong to a single item: the query, or the job's own functions of its answer."""
    try:
        await hands.judge.raise_if_nobodys_fault(failed.cause)
    except Transient as outage:
        return Ending(RunState.DUE, why=str(outage), rest=_OUTAGE_REST)
    cause = cause_of(failed.cause, Reason.HANDLER_FAILED, handler=hands.mediator.handler_name(failed.arrival))
    return Ending(RunState.FAILED, cause=cause, is_final=isinstance(failed.cause, Poison | Misconfigured))


def logged(checkpoint: str | None) -> str | None:
    """A checkpoint as a line of the log has it: a provider's name of a page may be as long as an address."""
    return None if checkpoint is None else checkpoint[:_LONGEST_LOGGED]


def asked_to_end(hands: RunHands, wish: Wish) -> Ending | None:
    """How the run ends between two of its transactions, where somebody or the process wants it; None: it goes on."""
    if wish.cancelled_by is not None:
        return Ending(RunState.CANCELLED, why=f"asked for by {wish.cancelled_by}")
    if wish.is_paused:
        return Ending(RunState.DUE, why="the job is paused")
    if hands.stop.is_set():
        return Ending(RunState.DUE, why="the process is to end")
    return None


class Road:
    """The batches of one run."""

    def __init__(self, hands: RunHands, run: ClaimedRun) -> None:
        self._hands, self._run = hands, run
        self._items, self._units, self._order = Items(hands.job, run), Units(hands, run), PageOrder(hands)
        self._begun_at: str | None = None

    @property
    def checkpoint(self) -> str | None:
        """Where the run stands, as far as this process knows."""
        return self._units.checkpoint or self._begun_at

    async def work(self) -> Ending:
        if self._run.is_replay:
            return await self._replay()
        cursor = self._begun_at = await self._cursor()
        while not self._hands.stop.is_set():
            batch = await self._load(cursor)
            if not batch:
                return Ending(RunState.DONE)
            if (ending := await self._work_batch(batch)) is not None:
                return ending
            cursor = batch[-1].key
            _log.info(logs.RUN_BATCH, items=len(batch), checkpoint=logged(cursor))
        return Ending(RunState.DUE, why="the process is to end")

    async def _work_batch(self, batch: Sequence[Item]) -> Ending | None:
        for unit in units_of(batch, is_batch=self._hands.job.unit == "batch"):
            if (ending := asked_to_end(self._hands, await self._units.do(unit))) is not None:
                return ending
        return None

    async def _replay(self) -> Ending:
        while waiting := await self._asked_for():
            for identity, page_after in waiting:
                if (ending := await self._do_again(identity, page_after)) is not None:
                    return ending
        return Ending(RunState.DONE)

    async def _asked_for(self) -> Sequence[tuple[str, str | None]]:
        async with self._hands.transaction() as connection:
            return await items_of_replay(connection, self._run, limit=self._hands.job.batch_size)

    async def _do_again(self, identity: str, page_after: str | None) -> Ending | None:
        """The item as its query answers with it now: on the page that it was on, or behind, if others came between.

        One that it does not answer with any more stays as it was.
        """
        cursor = page_after
        while batch := await self._load(cursor):
            found = next((item for item in batch if item.identity == identity), None)
            if found is not None:
                return asked_to_end(self._hands, await self._units.do([found]))
            if (ending := await self._asked_meanwhile()) is not None:
                return ending
            cursor = batch[-1].key
        return asked_to_end(self._hands, await self._units.miss(identity))

    async def _asked_meanwhile(self) -> Ending | None:
        """Asked where no unit would tell. Raises LeaseLost."""
        async with self._hands.transaction() as connection:
            await self._require_room(connection)
            _, wish = await progress_of(connection, self._run)
        return asked_to_end(self._hands, wish)

    async def _cursor(self) -> str | None:
        async with self._hands.transaction() as connection:
            return await cursor_of(connection, self._run, is_carried_on=self._hands.job.checkpoint == "job")

    async def _load(self, cursor: str | None) -> Sequence[Item]:
        """The next batch; empty at the end. Raises HandlerFailed for whatever the job's own code raises.

        Raises Misconfigured for a page that goes back.
        """
        page = self._items.page(cursor)
        with suppress(_ReadOnly):
            async with self._hands.transaction() as connection:
                await self._require_room(connection)
                answer = await self._hands.mediator.ask(page, connection)
                raise _ReadOnly
        with Blaming(lambda: page, lambda error: error):
            batch = self._items.batch(answer, after=cursor)
        await self._order.require(batch, after=cursor)
        return batch

    async def _require_room(self, connection: Connection) -> None:
        """Raises Transient while so much waits for Kafka that more would fill the database: the run goes on later."""
        limit = self._hands.outbox_limit
        if await is_outbox_full(connection, limit):
            raise Transient(f"{limit} records wait in the outbox for Kafka, which is the limit (outbox_limit)")


class _ReadOnly(Exception):
    """Rolls back what a query has written."""


class _Closing:
    """The end of a run, also where the answer to a COMMIT is lost or Postgres is away for a while."""

    def __init__(self, hands: RunHands, run: ClaimedRun, ending: Ending) -> None:
        self._hands, self._run, self._ending = hands, run, ending

    async def close(self) -> None:
        """The run stands as it ended. Raises LeaseLost if it is another's; cancelled where its lease runs out."""
        is_in_doubt = False
        while True:
            try:
                await self._write()
                return
            except LeaseLost:
                if is_in_doubt and await self._was_written():
                    return
                raise
            except Transient:
                is_in_doubt = True
                await self._hands.clock.sleep(_AGAIN_SECONDS)

    async def _write(self) -> None:
        run, ending, job, now = self._run, self._ending, self._hands.job, self._hands.clock.now()
        async with self._hands.transaction() as connection:
            if ending.state is RunState.DUE:
                await put_back(connection, run, due_at=now + ending.rest)
                return
            if ending.also is not None:
                await ending.also(connection)
            cause = ending.cause
            is_unwanted = await end_run(
                connection, run, ending.state, error=None if cause is None else (cause.error_class, cause.message)
            )
            is_final = ending.is_final or is_unwanted or run.attempt >= job.run_attempts
            if ending.state is RunState.FAILED and not is_final:
                await retry_run(connection, run.id, due_at=now + job.run_retry_delay)
            elif run.is_replay:
                await give_back_items(connection, run.id)

    async def _was_written(self) -> bool:
        async with self._hands.transaction() as connection:
            return await state_under(connection, self._run) is self._ending.state
