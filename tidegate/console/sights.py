"""Waiting until readers see a record: looks at Postgres, a few a second, shared by all who wait in a process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from tidegate.app import App
from tidegate.console.places import place_of
from tidegate.console.sight import Answer, Found, Question, judge
from tidegate.jobs.declaration import ConsumerJob
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Conflict, Misconfigured, Transient
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")

LOOK_EVERY_SECONDS = 0.25
"""A refresh comes once a second: asking oftener finds nothing sooner."""

# What callers in a loop can make a worker hold open.
_MOST_WAITERS = 200


class TooManyWaiters(Conflict):
    """More callers wait than this process lets wait at once."""


class UnknownRecord(Misconfigured):
    """There is no such job, or it does not read the topic."""


def question_of(app: App, code: str, place: str) -> Question:
    """What is asked for by a job's code and TOPIC:P:OFFSET. Raises Misconfigured for another form, UnknownRecord."""
    partition, offset = place_of(place)
    try:
        job = app.job(code)
    except Misconfigured as error:
        raise UnknownRecord(str(error)) from error
    topics = sorted(topic.name for topic in job.topics)
    if partition.topic not in topics:
        raise UnknownRecord(f"job {code!r} does not read topic {partition.topic!r}; it reads: {', '.join(topics)}")
    return Question(code, partition, offset, has_readers=not isinstance(job, ConsumerJob))


async def _look(connection: Connection, service: str, questions: Sequence[Question]) -> Mapping[Question, Found]:
    """What is known of each now, by one statement."""
    rows = await connection.fetch(
        _QUERIES["sights"],
        service,
        [each.job for each in questions],
        [each.partition.topic for each in questions],
        [each.partition.partition for each in questions],
        [each.offset for each in questions],
    )
    return {
        question: Found(
            has_started=row["has_started"],
            topic_id=row["topic_id"],
            position=row["position"],
            visible=row["visible"],
            trouble=row["trouble"],
            letter=row["letter"],
            letter_state=row["letter_state"],
            letter_reason=row["letter_reason"],
            behind=row["behind"],
            is_parked=bool(row["is_parked"]),
            is_skipped=bool(row["is_skipped"]),
        )
        for question, row in zip(questions, rows, strict=True)
    }


class Waiters:
    """All who wait in this process. However many they are, Postgres is asked four times a second."""

    def __init__(self, pool: Pool, service: str, clock: Clock, *, most: int = _MOST_WAITERS) -> None:
        self._pool, self._service, self._clock, self._most = pool, service, clock, most
        self._waiting: Counter[Question] = Counter()
        self._round: asyncio.Task[Mapping[Question, Found]] | None = None
        self._looked_at = float("-inf")

    async def wait(self, question: Question, timeout: float, *, topic_id: UUID | None = None) -> Answer:
        """Returns the answer as soon as it is final, else the one at the end of `timeout` (seconds).

        Raises TooManyWaiters at once, and Transient where Postgres did not answer to the end.
        """
        if self._waiting.total() >= self._most:
            raise TooManyWaiters(f"{self._most} callers wait already; ask again later")
        give_up_at = self._clock.monotonic() + timeout
        self._waiting[question] += 1
        try:
            while True:
                answer = await self._next(question, topic_id, give_up_at)
                if answer is not None and (answer.is_final or self._clock.monotonic() >= give_up_at):
                    return answer
        finally:
            self._waiting[question] -= 1
            self._waiting += Counter()  # without those that nobody waits for

    async def _next(self, question: Question, topic_id: UUID | None, give_up_at: float) -> Answer | None:
        """The answer of the next look; None where that began before this was asked, or failed and is repeated."""
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._look(), name="sights")
            # Whoever waited for it may have hung up: its error is nobody's then.
            self._round.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # Shielded: the others wait for the same look when this caller hangs up.
            found = (await asyncio.shield(self._round)).get(question)
        except Transient:
            if self._clock.monotonic() >= give_up_at:
                raise
            return None
        return None if found is None else judge(question, found, topic_id=topic_id)

    async def _look(self) -> Mapping[Question, Found]:
        await self._clock.sleep(max(0.0, self._looked_at + LOOK_EVERY_SECONDS - self._clock.monotonic()))
        self._looked_at = self._clock.monotonic()
        questions = list(self._waiting)
        with translated_errors("look for what is visible"):
            async with self._pool.acquire(timeout=10) as connection:
                return await _look(connection, self._service, questions)
