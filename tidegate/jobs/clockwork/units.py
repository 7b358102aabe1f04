"""The unit of work of a run: some items, their results, the checkpoint and what is published, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import structlog

from consumers.batch import Attempts
from consumers.dispatch import HandlerFailed, Prepared, hidden_failure
from consumers.failure import FailureClass, classify
from consumers.judging import Judge
from consumers.outages import Outages
from dlq.cause import Cause, cause_of
from dlq.states import LetterState
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.items import Item
from tidegate.jobs.clockwork.letters import GivenUp, LetterHome, Lost, give_up
from tidegate.jobs.clockwork.maintenance import note_removal
from tidegate.jobs.clockwork.runs import ClaimedRun, Tally, Wish, progress_of, settle_unit
from tidegate.jobs.mediator import Mediator
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Reason, TidegateError, Transient
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.outbox import enqueue
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.source import Outgoing

_log = structlog.get_logger(__name__)
_QUERIES = load_queries(__package__)

# A handler is cut off at its time limit; a transaction that is silent for longer than that has lost its process.
_SILENCE_BEYOND_HANDLERS = timedelta(seconds=5)
OUTBOX_LIMIT = 100_000
"""Records in the outbox at which runs rest: some hundred MB of events, hours of an outage of Kafka for most jobs."""
_MISSED = "asked for again, and the job's query does not answer with it any more; discard it if that is right"


class Outage(Transient):
    """Something that the job's handlers need does not answer: the run waits, and nothing pays for it."""


class Interrupted(Transient):
    """The process is to end while a unit waits to be tried again."""


class ItemFailed(TidegateError):
    """An item that ends its run: it cannot be done, and the job stops at such."""

    def __init__(self, cause: Cause, *, is_final: bool) -> None:
        super().__init__(cause.message)
        self.cause, self.is_final = cause, is_final


@dataclass(frozen=True, slots=True)
class RunHands:
    """What a run of a job is worked off with; one for all its runs in this process.

    `road`: makes what a run does of the hands and the run; None: the batches of the job's query, one after the other.
    `outages`: the breakers that the judge asks, where somebody shows them.
    """

    job: ClockJob
    pool: Pool
    mediator: Mediator
    judge: Judge
    clock: Clock
    metrics: Metrics
    stop: asyncio.Event
    letters: LetterHome
    outbox_limit: int = OUTBOX_LIMIT
    road: Callable[[RunHands, ClaimedRun], Any] | None = None
    outages: Outages | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Yields a connection in a transaction. Trouble on the way to Postgres raises Transient."""
        with translated_errors("run"):
            async with self.pool.acquire(timeout=10) as connection, connection.transaction():
                yield connection


@dataclass(slots=True)
class _Tries:
    """What is remembered of a unit between its attempts: how its items failed, and which of them were given up."""

    attempts: Attempts = field(default_factory=Attempts)
    given_up: dict[str, Lost] = field(default_factory=dict)
    count: int = 0
    is_isolating: bool = False


class _Taken(NamedTuple):
    """An item that is to be done, and the dead letter that it has been until `at`."""

    item: Item
    letter: UUID | None
    at: datetime


class Units:
    """Does the units of one run, in their order. Use by one task.

    `checkpoint`: what it says of the run, as far as this process has moved it; None until then.
    """

    def __init__(self, hands: RunHands, run: ClaimedRun) -> None:
        self._hands, self._run = hands, run
        self._job, self._known = hands.job, run.tally
        self.checkpoint: str | None = None
        silence_limit = hands.job.handler_timeout + _SILENCE_BEYOND_HANDLERS
        self._silence_ms = str(int(silence_limit.total_seconds() * 1000))

    async def do(self, unit: Sequence[Item]) -> Wish:
        """Each item of the unit is done, was done before, or is recorded as failed.

        Raises ItemFailed where the job stops at a failing item, Outage where nobody is at fault, Interrupted where the
        process is to end before that is known, LeaseLost.
        """
        tries = _Tries()
        while True:
            try:
                return await self._attempt(unit, tries)
            except HandlerFailed as failed:
                await self._judge(failed, unit, tries)
                error: BaseException = failed.cause
            except Transient as trouble:
                if isinstance(trouble, Outage):
                    raise
                error = trouble
                if (failed_below := hidden_failure(trouble)) is not None:
                    await self._judge(failed_below, unit, tries)
                elif (wish := await self._settled_after_all(unit)) is not None:
                    return wish
            await self._rest(tries, error)

    async def _attempt(self, unit: Sequence[Item], tries: _Tries) -> Wish:
        untried = [item for item in unit if item.identity not in tries.given_up]
        prepared = await self._prepare(untried)
        async with self._hands.transaction() as connection:
            taken = await self._take(connection, unit)
            fresh = [each.item for each in taken]
            published = await self._dispatch(connection, fresh, prepared, tries)
            lost = [tries.given_up[item.identity] for item in fresh if item.identity in tries.given_up]
            new = await self._tell_letters(connection, taken, lost)
            await enqueue(connection, published)
            tally = Tally(len(fresh) - len(lost), len(unit) - len(fresh), len(lost))
            # Last, so that the lease's row is locked for no longer than a COMMIT takes: it has to be renewed meanwhile.
            cursor = self._cursor_at(unit[-1])
            wish = await settle_unit(connection, self._run, tally, cursor=cursor)
            # After it, as who cancels a run by hand does it: run and audit in the other order could deadlock with them.
            await note_removal(connection, self._job, self._run, tally.processed)
        self._count(tally)
        self._note_checkpoint(cursor)
        self._count_letters(taken, lost, new)
        for each in lost:
            cause, then = each.cause, "quarantined" if self._is_final else "failed"
            _log.warning(logs.RUN_ITEM_FAILED, error_class=cause.error_class, error=cause.message, then=then)
        return wish

    async def miss(self, identity: str) -> Wish:
        """An item that was to be done again is not there any more, and stays as it was. Raises LeaseLost, Transient."""
        run = self._run
        async with self._hands.transaction() as connection:
            scope = (run.job, run.scope.tenant, run.scope.brand)
            await connection.execute(_QUERIES["miss_item"], *scope, identity, _MISSED, self._hands.letters.most_replays)
            tally = Tally(failed=1)
            wish = await settle_unit(connection, run, tally, cursor=None)
        self._count(tally)
        _log.warning(logs.RUN_ITEM_FAILED, error_class="", error=_MISSED, then="left where it was")
        return wish

    def _count(self, tally: Tally) -> None:
        self._known = self._known.plus(tally)
        for outcome, items in tally._asdict().items():
            self._hands.metrics.run_items.labels(self._job.code, outcome).inc(items)

    def _note_checkpoint(self, cursor: str | None) -> None:
        if cursor is None:
            return
        self.checkpoint = cursor
        self._hands.metrics.run_checkpoint.labels(self._job.code).set(self._hands.clock.now().timestamp())

    def _cursor_at(self, last: Item) -> str | None:
        # A replay does single items, wherever they stand: the next run must not go on behind them.
        return None if self._run.is_replay else last.position or last.key

    async def _prepare(self, items: Sequence[Item]) -> Prepared:
        mediator = self._hands.mediator
        if not mediator.prepares:
            return {}
        return {item.arrival.record.offset: await mediator.prepare(item.arrival) for item in items}

    async def _take(self, connection: Connection, unit: Sequence[Item]) -> Sequence[_Taken]:
        """The items that nobody has done yet, in order: the first of those that are done once by the same."""
        run, first = self._run, {item.identity: item for item in reversed(unit)}
        scope = (run.job, run.scope.tenant, run.scope.brand)
        rows = await connection.fetch(_QUERIES["take_items"], *scope, list(first), run.id, self._silence_ms, run.token)
        taken = {row["key"]: row for row in rows}
        fresh = [item for item in unit if item.identity in taken and first[item.identity] is item]
        return [_Taken(item, taken[item.identity]["letter"], taken[item.identity]["decided_at"]) for item in fresh]

    async def _dispatch(
        self, connection: Connection, fresh: Sequence[Item], prepared: Prepared, tries: _Tries
    ) -> Sequence[Outgoing]:
        todo = [item for item in fresh if item.identity not in tries.given_up]
        if not tries.is_isolating:
            return await self._call(connection, todo, prepared) if todo else []
        published: list[Outgoing] = []
        again: list[HandlerFailed] = []
        for item in todo:
            try:
                async with connection.transaction():
                    published += await self._call(connection, [item], prepared)
            except HandlerFailed as failed:
                if await self._is_given_up(failed, item, tries):
                    continue
                again.append(failed)
        if again:
            raise Transient(f"{len(again)} items are to be tried again") from again[0].cause
        return published

    async def _call(self, connection: Connection, items: Sequence[Item], prepared: Prepared) -> Sequence[Outgoing]:
        arrivals = [item.arrival for item in items]
        published = await self._hands.mediator.dispatch(arrivals, connection, prepared)
        try:
            # A deferred constraint must speak now, while we know whose it is, and not at the commit.
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except asyncpg.PostgresError as error:
            raise HandlerFailed(arrivals[0], error) from error
        return published

    async def _tell_letters(
        self, connection: Connection, taken: Sequence[_Taken], lost: Sequence[Lost]
    ) -> Sequence[Lost]:
        """What failed is recorded, and the topic of the job's letters told: of new ones, and of those resolved.

        Returns those that are letters and were none before.
        """
        home, given_up = self._hands.letters, GivenUp()
        if lost:
            given_up = await give_up(connection, home, self._run, lost, is_final=self._is_final)
        resolved = [
            home.outcome(letter, item.key, LetterState.RESOLVED, at=at)
            for item, letter, at in _resolved(taken, lost)
            if letter is not None
        ]
        await enqueue(connection, [*given_up.told, *resolved], kind="dead_letter")
        return given_up.new

    def _count_letters(self, taken: Sequence[_Taken], lost: Sequence[Lost], new: Sequence[Lost]) -> None:
        metrics, code = self._hands.metrics, self._job.code
        for each in new:
            metrics.dead_letters.labels(code, each.reason).inc()
        if self._run.is_replay:
            resolved = sum(each.letter is not None for each in _resolved(taken, lost))
            metrics.replayed_letters.labels(code, "resolved").inc(resolved)
            metrics.replayed_letters.labels(code, "failed").inc(len(lost) if self._is_final else 0)

    @property
    def _is_final(self) -> bool:
        return self._job.partial_failure == "quarantine"

    async def _judge(self, failed: HandlerFailed, unit: Sequence[Item], tries: _Tries) -> None:
        """Of a call for the whole unit: it is tried again, item by item if one of them has to pay."""
        item = next(each for each in unit if each.arrival is failed.arrival)
        is_alone = len(unit) == 1 or tries.is_isolating or self._job.partial_failure == "stop"
        if is_alone:
            await self._is_given_up(failed, item, tries)
        elif await self._reason(failed, tries) is not None:
            tries.is_isolating = True

    async def _is_given_up(self, failed: HandlerFailed, item: Item, tries: _Tries) -> bool:
        """Whether the item is given up; else it is to be tried again. Raises ItemFailed where that ends the run."""
        reason = await self._reason(failed, tries)
        if reason is None:
            return False
        handler = self._hands.mediator.handler_name(failed.arrival)
        cause = cause_of(failed.cause, reason, handler=handler)
        if self._job.partial_failure == "stop":
            raise ItemFailed(cause, is_final=classify(failed.cause) is FailureClass.POISON) from failed.cause
        made = max(1, tries.attempts.made_at(item.arrival.record.offset))
        tries.given_up[item.identity] = Lost(item, reason, cause, made, handler)
        return True

    async def _reason(self, failed: HandlerFailed, tries: _Tries) -> Reason | None:
        try:
            return await self._hands.judge.verdict(tries.attempts, failed)
        except Transient as nobodys:
            if classify(failed.cause) is FailureClass.COLLISION:
                return None
            raise Outage(str(nobodys)) from failed.cause

    async def _settled_after_all(self, unit: Sequence[Item]) -> Wish | None:
        """What there is to know of a unit whose COMMIT got no answer; None if it was rolled back. Raises LeaseLost."""
        try:
            async with self._hands.transaction() as connection:
                tally, wish = await progress_of(connection, self._run)
        except Transient:
            return None  # whoever takes the items again finds them done
        if sum(tally) != sum(self._known) + len(unit):
            return None
        self._known = tally
        return wish

    async def _rest(self, tries: _Tries, error: BaseException) -> None:
        tries.count += 1
        try:
            async with asyncio.timeout(self._job.retry.delay(tries.count, error)):
                await self._hands.stop.wait()
        except TimeoutError:
            return
        raise Interrupted("the process is to end")


def _resolved(taken: Sequence[_Taken], lost: Sequence[Lost]) -> Sequence[_Taken]:
    """What was taken and has not failed."""
    given_up = {each.item.identity for each in lost}
    return [each for each in taken if each.item.identity not in given_up]
