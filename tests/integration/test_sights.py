"""Waiting until readers see a record: on Postgres, and over the worker's endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from inbox.store import register_job
from projections.memory import MemorySink
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.console.http import serve
from tidegate.console.sight import Question, Sight
from tidegate.console.sights import TooManyWaiters, Waiters, question_of
from tidegate.console.visible_http import visible_route
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import JobCode, JobId
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

ORDERS = UUID(int=7)


class Noted(msgspec.Struct):
    n: int


def document(event: Event[Noted]) -> Upsert:
    return Upsert(event.id, version=1, document={"n": event.data.n})


APP = App(
    service="tests",
    owner="tests",
    jobs=[
        ProjectionJob(
            code="counts",
            topics=[Topic("orders", format=Json(), envelope=CloudEvents())],
            unlisted="skip",
            runbook="-",
            events=[on("noted", Noted, document)],
            sink=MemorySink(),
            freshness_sla=timedelta(seconds=5),
        )
    ],
)


def asked(offset: int, partition: int = 0) -> Question:
    return question_of(APP, "counts", f"orders:{partition}:{offset}")


@pytest.fixture
async def job(pool: Pool) -> JobId:
    async with pool.acquire() as connection:
        return await register_job(connection, service="tests", code=JobCode("counts"), claim_rule="v1")


@pytest.fixture
def waiters(pool: Pool) -> Waiters:
    return Waiters(pool, "tests", SystemClock(), most=3)


async def stand(pool: Pool, job: JobId, position: int, visible: int | None = None, *, topic_id: UUID = ORDERS) -> None:
    """The job has settled up to `position`, and readers see up to `visible`."""
    await pool.execute(
        """
        INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id) VALUES ($1, 'orders', 0, $2, $3)
        ON CONFLICT (job, run, topic, partition) DO UPDATE SET next_offset = $2, topic_id = $3
        """,
        job,
        position,
        topic_id,
    )
    if visible is not None:
        await pool.execute(
            """
            INSERT INTO tidegate.visible (job, topic, partition, next_offset, topic_id) VALUES ($1, 'orders', 0, $2, $3)
            ON CONFLICT (job, topic, partition) DO UPDATE SET next_offset = $2, topic_id = $3
            """,
            job,
            visible,
            topic_id,
        )


async def keep_letter(pool: Pool, job: JobId, offset: int) -> UUID:
    letter = uuid4()
    await pool.execute(
        """
        INSERT INTO tidegate.dead_letter
            (id, job, topic, topic_id, partition, "offset", header_names, header_values, reason, error_class,
             error_message, fingerprint, attempts, first_failed_at, last_failed_at)
        VALUES ($1, $2, 'orders', $3, 0, $4, '{}', '{}', 'rejected', 'Rejected', '-', 'f', 1, now(), now())
        """,
        letter,
        job,
        ORDERS,
        offset,
    )
    return letter


async def test_waiter_is_told_when_it_becomes_visible(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """Not before, though it was settled long ago."""
    await stand(pool, job, position=11, visible=4)
    waiting = asyncio.create_task(waiters.wait(asked(10), timeout=20))
    await asyncio.wait([waiting], timeout=0.6)
    assert not waiting.done()

    await stand(pool, job, position=11, visible=11)

    assert (await waiting).sight is Sight.VISIBLE


async def test_waiter_that_gives_up_is_told_how_far_it_is(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """The time-out is the caller's, and the answer is not an error."""
    await stand(pool, job, position=11, visible=4)

    answer = await waiters.wait(asked(10), timeout=0)

    assert (answer.sight, answer.position, answer.visible) == (Sight.PENDING, 11, 4)


async def test_dead_record_is_told_at_once(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """Half a minute of waiting for what will not come is half a minute of a customer's."""
    await stand(pool, job, position=11, visible=4)
    letter = await keep_letter(pool, job, 10)

    answer = await waiters.wait(asked(10), timeout=60)

    assert (answer.sight, answer.letter) == (Sight.DEAD, letter)


async def test_visible_offset_of_another_topic_promises_nothing(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """After a topic was made anew and adopted, its offsets begin from nothing."""
    await stand(pool, job, position=100, visible=100)
    await pool.execute("UPDATE tidegate.position SET topic_id = $1, next_offset = 0", UUID(int=8))

    answer = await waiters.wait(asked(10), timeout=0)

    assert (answer.sight, answer.visible) == (Sight.PENDING, None)


async def test_many_waiters_are_one_statement(pool: Pool, job: JobId) -> None:
    """A hundred callers that wait must not cost Postgres more than one."""
    await stand(pool, job, position=200, visible=0)
    waiters = Waiters(pool, "tests", SystemClock(), most=150)
    looks = 0
    original = waiters._look

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await original()

    waiters._look = counted  # type: ignore[method-assign,assignment]  # what is counted
    waiting = [asyncio.create_task(waiters.wait(asked(n), timeout=20)) for n in range(100)]
    await asyncio.wait(waiting, timeout=0.6)
    before = looks

    await stand(pool, job, position=200, visible=200)
    answers = await asyncio.gather(*waiting)

    assert {answer.sight for answer in answers} == {Sight.VISIBLE}
    assert before <= 4
    assert looks <= before + 3
    assert not waiters._waiting


async def test_waiter_that_hangs_up_keeps_nobody_else_from_an_answer(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """They share a look: the first caller's connection may be gone any time."""
    await stand(pool, job, position=11, visible=4)
    first = asyncio.create_task(waiters.wait(asked(10), timeout=20))
    second = asyncio.create_task(waiters.wait(asked(10), timeout=20))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])

    await stand(pool, job, position=11, visible=11)

    assert (await second).sight is Sight.VISIBLE


async def test_waiters_are_bounded(pool: Pool, job: JobId, waiters: Waiters) -> None:
    """Each holds a connection of the endpoint, which has to answer the probes too."""
    await stand(pool, job, position=0)
    waiting = [asyncio.create_task(waiters.wait(asked(1), timeout=20)) for _ in range(3)]
    await asyncio.sleep(0)

    with pytest.raises(TooManyWaiters):
        await waiters.wait(asked(1), timeout=0)

    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert (await waiters.wait(asked(1), timeout=0)).sight is Sight.PENDING


class _Fine:
    def live(self) -> Sequence[str]:
        return ()

    def ready(self) -> Sequence[str]:
        return ()


@pytest.fixture
async def client(waiters: Waiters) -> AsyncIterator[httpx.AsyncClient]:
    more = [visible_route(APP, waiters, SystemClock())]
    async with (
        serve(Settings(http_port=0), metrics=Metrics(), health=_Fine(), more=more) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as opened,
    ):
        yield opened


async def test_http_answers_with_the_state_and_its_status(pool: Pool, job: JobId, client: httpx.AsyncClient) -> None:
    """200 visible, 202 not yet, 409 never: a caller need not read the body."""
    await stand(pool, job, position=11, visible=5)
    letter = await keep_letter(pool, job, 9)

    seen, pending, dead = [
        await client.get("/v1/jobs/counts/visible", params={"offset": f"orders:0:{offset}"}) for offset in (4, 10, 9)
    ]

    assert [each.status_code for each in (seen, pending, dead)] == [200, 202, 409]
    assert seen.json()["is_visible"] is True
    assert (pending.json()["state"], pending.json()["position"], pending.json()["visible"]) == ("pending", 11, 5)
    assert dead.json()["letter"] == str(letter)


async def test_http_waits_as_long_as_it_is_asked_to(pool: Pool, job: JobId, client: httpx.AsyncClient) -> None:
    """A request instead of a loop in every caller."""
    await stand(pool, job, position=11, visible=5)
    waiting = asyncio.create_task(
        client.get("/v1/jobs/counts/visible", params={"offset": "orders:0:10", "timeout": "20"})
    )
    await asyncio.wait([waiting], timeout=0.5)
    assert not waiting.done()

    await stand(pool, job, position=11, visible=11)

    assert (await waiting).status_code == 200


@pytest.mark.parametrize(
    "path, status, words",
    [
        ("/v1/jobs/nobody/visible?offset=orders:0:1", 404, "no job 'nobody'"),
        ("/v1/jobs/counts/visible?offset=others:0:1", 404, "does not read topic 'others'"),
        ("/v1/jobs/counts/visible?offset=orders", 400, "orders:3:18277"),
        ("/v1/jobs/counts/visible", 400, "orders:3:18277"),
        ("/v1/jobs/counts/visible?offset=orders:0:1&timeout=31", 400, "0 to 30 seconds"),
        ("/v1/jobs/counts/visible?offset=orders:0:1&timeout=nan", 400, "0 to 30 seconds"),
        ("/v1/jobs/counts/visible?offset=orders:0:1&timeout=soon", 400, "0 to 30 seconds"),
    ],
)
async def test_http_misuse_names_the_remedy(client: httpx.AsyncClient, path: str, status: int, words: str) -> None:
    """A wrong request must not look like an event that is not there yet."""
    answer = await client.get(path)

    assert answer.status_code == status
    assert words in answer.json()["error"]


async def test_http_refuses_more_waiters_than_it_can_serve(
    pool: Pool, job: JobId, client: httpx.AsyncClient, waiters: Waiters
) -> None:
    """429 with when to come again, and the probes still answer."""
    await stand(pool, job, position=0)
    waiting = [asyncio.create_task(waiters.wait(asked(1), timeout=20)) for _ in range(3)]
    await asyncio.sleep(0)

    refused = await client.get("/v1/jobs/counts/visible", params={"offset": "orders:0:1"})

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert (await client.get("/livez")).status_code == 200
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
