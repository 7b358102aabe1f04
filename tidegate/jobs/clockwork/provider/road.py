"""A run of a ProviderSyncJob: a question to the provider, its answer page by page, and the cursor when all is here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from consumers.decoding import Arrival
from consumers.routes import Route
from tidegate.jobs.blaming import Blaming
from tidegate.jobs.clockwork.items import Item, Items
from tidegate.jobs.clockwork.provider.calling import Calls, LeftAlone, Supply
from tidegate.jobs.clockwork.provider.cursor import SyncCursor, forget_replaced, move_cursor, read_cursor
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob, Pull
from tidegate.jobs.clockwork.provider.pulling import PageGone, Pulled
from tidegate.jobs.clockwork.provider.question import Question, Way
from tidegate.jobs.clockwork.runner import Ending, Road, asked_to_end, logged
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState, cursor_of, progress_of
from tidegate.jobs.clockwork.units import RunHands
from tidegate_kernel import logs
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Denied, Rejected
from tidegate_kernel.permissions import Action, Actor, Deed, Role
from tidegate_kernel.postgres import Connection

_log = structlog.get_logger(__name__)

# Nobody's success: a run that was told something asks a question of its own, which no other run goes on with.
_APART = -1


class ProviderRoad(Road):
    """Pages of a provider's answer, each called for outside of any transaction, then settled as any batch."""

    def __init__(self, supply: Supply, hands: RunHands, run: ClaimedRun) -> None:
        super().__init__(hands, run)
        assert isinstance(hands.job, ProviderSyncJob)  # nothing else is given this road
        self._job, self._supply, self._calls = hands.job, supply, Calls(supply, hands)
        self._pulls = PulledItems(hands.job, run)
        self._known = run.tally.processed

    async def work(self) -> Ending:
        await self._require_access()
        try:
            cursor, question = await self._begin()
            if self._run.is_replay:
                return await self._ask_again(cursor.question_for_lost())
            return await self._sync(cursor, question)
        except LeftAlone as alone:
            return await self._asked_meanwhile() or Ending(RunState.DUE, why=str(alone), rest=alone.rest)

    async def _require_access(self) -> None:
        """Raises Denied, which the audit keeps, before the provider hears of a scope that may not use it."""
        scope, job = self._run.scope, self._job
        if scope in job.access:
            return
        target = f"{self._supply.service}.{job.code}"
        deed = Deed(Action.RUN_TRIGGER, target, tenant=scope.tenant, brand=scope.brand or None)
        worker = Actor(f"{self._supply.service} worker", Role.OPERATOR, origin=f"run {self._run.id}")
        async with permitted(self._hands.pool, worker, deed):
            raise Denied(job.no_access(scope))

    async def _begin(self) -> tuple[SyncCursor, Question]:
        """Where the last success has left it, and what this run asks: what one before it has begun to, or anew."""
        is_told, is_carried_on = bool(self._run.parameters), self._job.checkpoint == "job"
        async with self._hands.transaction() as connection:
            cursor = await read_cursor(connection, self._run)
            left = await cursor_of(connection, self._run, is_carried_on=is_carried_on and not is_told)
        base = _APART if is_told else cursor.run
        begun = Question.read(left)
        if begun is not None and begun.based_on == base:
            self._begun_at = left
            return cursor, begun
        return cursor, cursor.question(self._job.reach_back).based(base)

    async def _sync(self, cursor: SyncCursor, question: Question) -> Ending:
        way, is_anew = Way(question), False
        while (ending := await self._asked_meanwhile()) is None:
            try:
                pulled = await self._pull(question)
            except PageGone:
                # Once: a provider that keeps no page but the first would be asked round and round.
                if question.page is None or is_anew:
                    raise
                question, is_anew = question.anew(), True
                way = Way(question)
                continue
            question = question.not_later_than(pulled.as_of) if question.page is None else question
            following = way.behind(question, pulled.next_page)
            if (ending := await self._work_page(pulled, question, following)) is not None:
                return ending
            if following is None:
                return Ending(RunState.DONE, also=partial(self._succeed, cursor, question, pulled))
            question = following
        return ending

    async def _ask_again(self, question: Question) -> Ending:
        """Each item that was asked for is done again; what the provider does not answer with any more stays."""
        while wanted := {identity for identity, _ in await self._asked_for()}:
            following: Question | None = question
            way = Way(question)
            while wanted and following is not None:
                if (ending := await self._asked_meanwhile()) is not None:
                    return ending
                pulled, page = await self._pull(following), following
                following = way.behind(page, pulled.next_page)
                found = [item for item in self._items_of(pulled, page, following) if item.identity in wanted]
                wanted -= {item.identity for item in found}
                if (ending := await self._work_items(found)) is not None:
                    return ending
            for identity in sorted(wanted):
                if (ending := asked_to_end(self._hands, await self._units.miss(identity))) is not None:
                    return ending
        return Ending(RunState.DONE)

    async def _pull(self, question: Question) -> Pulled:
        pulled = await self._calls.pull(self._pulls.page_of(question))
        if pulled.is_unchanged and question.etag is None:
            raise Rejected("the provider says that nothing has changed, and was not asked since when")
        return pulled

    async def _work_page(self, pulled: Pulled, question: Question, following: Question | None) -> Ending | None:
        items = self._items_of(pulled, question, following)
        if (ending := await self._work_items(items)) is not None:
            return ending
        if items:
            _log.info(logs.RUN_BATCH, items=len(items), checkpoint=logged(self.checkpoint))
        return None

    async def _work_items(self, items: Sequence[Item]) -> Ending | None:
        return await self._work_batch(items) if items else None

    def _items_of(self, pulled: Pulled, question: Question, following: Question | None) -> Sequence[Item]:
        page = self._pulls.page_of(question)
        with Blaming(lambda: page, lambda error: error):
            return self._pulls.items_of(pulled, question, following or question)

    async def _succeed(self, cursor: SyncCursor, question: Question, pulled: Pulled, connection: Connection) -> None:
        """In the transaction that ends the run: the next one begins where this one did."""
        if self._run.parameters:
            return  # what it was told may have left something out
        if self._job.partial_failure == "continue" and cursor.is_met_by(question):
            await forget_replaced(connection, self._run, question)
        tally, _ = await progress_of(connection, self._run)
        is_new = tally.processed > self._known
        etag = None if is_new else _etag_of_all(question, pulled, most=self._job.batch_size)
        await move_cursor(connection, self._run, question, etag=etag)


def _etag_of_all(question: Question, pulled: Pulled, *, most: int) -> str | None:
    """What stands for the whole answer: the etag of its only page, if there was room for more.

    A page that is full can stay the same while others come behind it.
    """
    if pulled.is_unchanged:
        return question.etag
    return pulled.usable_etag if question.page is None and len(pulled.items) < most else None


class PulledItems(Items):
    """Makes the pages and items of a run that calls a provider."""

    def __init__(self, job: ProviderSyncJob, run: ClaimedRun) -> None:
        super().__init__(job, run)
        self._most = job.batch_size
        self._pull: Route[Any] = Route("page", Pull, lambda event: job.query(event.data))

    def page_of(self, question: Question) -> Arrival:
        """What the page is called for with."""
        is_first = question.page is None
        pull = Pull(self.occasion, question.page, self._most, question.since, question.etag if is_first else None)
        return self._arrival(pull, self._pull, key="", identity="page")

    def items_of(self, pulled: Pulled, question: Question, following: Question) -> Sequence[Item]:
        """The items of a page. With the last of them the checkpoint is at the page behind it."""
        items = [self._item(each, question.page)._replace(position=question.spelled()) for each in pulled.items]
        if items:
            items[-1] = items[-1]._replace(position=following.spelled())
        return items
