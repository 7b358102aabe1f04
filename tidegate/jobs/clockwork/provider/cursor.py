"""Where a job's runs in a scope begin: moved by a run that ended well, in the transaction that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.jobs.clockwork.provider.question import Question
from tidegate.jobs.clockwork.runs import ClaimedRun
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# Before any provider had a catalogue: a question since then is one for everything.
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SyncCursor:
    """What the last successful run of a job in a scope left. `run` 0: none has succeeded yet.

    `etag` is of the whole answer to the question since `asked_since`. `lost_since`: by asking since then, every item
    is met again that has not been done; None: there is none. `has_failed`: some of them are to be tried again.
    """

    run: int
    now: datetime
    synced_until: datetime | None
    asked_since: datetime | None
    etag: str | None
    lost_since: datetime | None
    has_failed: bool

    def question(self, reach_back: timedelta) -> Question:
        """What the next run asks: a `reach_back` before the start of the last successful one.

        One that brought nothing new left its question and the etag of the answer: the same is asked again.
        """
        if self.has_failed and self.lost_since is not None:
            return self.question_for_lost()
        if self.etag is not None:
            return Question(self.run, self.now, self.now, self.asked_since, etag=self.etag)
        since = None if self.synced_until is None else max(self.synced_until, _EVER + reach_back) - reach_back
        return Question(self.run, self.now, self.now, since)

    def is_met_by(self, question: Question) -> bool:
        """Whether the answer to `question` holds every item that has not been done."""
        return self.lost_since is not None and (question.since is None or question.since <= self.lost_since)

    def question_for_lost(self) -> Question:
        """What is asked to meet every item again that has not been done."""
        since = self.lost_since
        return Question(self.run, self.now, self.now, None if since is None or since <= _EVER else since)


async def read_cursor(connection: Connection, run: ClaimedRun) -> SyncCursor:
    """Returns where the run begins if it is the first for its occasion."""
    row = await connection.fetchrow(_QUERIES["read_sync"], run.job, run.scope.tenant, run.scope.brand)
    assert row is not None
    return SyncCursor(**row)


async def move_cursor(connection: Connection, run: ClaimedRun, question: Question, *, etag: str | None) -> None:
    """In the transaction that ends the run well: the next one begins where the question was first asked.

    `etag`: of its whole answer, in which nothing was new. Call before `end_run`, which raises LeaseLost.
    """
    scope = (run.job, run.scope.tenant, run.scope.brand)
    await connection.execute(
        _QUERIES["move_sync"],
        *scope,
        run.id,
        run.token,
        question.began_at,
        question.since,
        etag,
        question.since or _EVER,
    )


async def forget_replaced(connection: Connection, run: ClaimedRun, question: Question) -> None:
    """Failed items that the answer did not hold any more are forgotten: their later versions have come."""
    scope = (run.job, run.scope.tenant, run.scope.brand)
    await connection.execute(_QUERIES["forget_replaced"], *scope, question.asked_at)
