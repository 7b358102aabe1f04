"""Requests at once: halved by overload, grown back one by one, in order, and nobody's turn is lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from projections.concurrency import Concurrency

FEW = 8


class ScriptedClock:
    """Stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def concurrency(clock: ScriptedClock) -> Concurrency:
    return Concurrency(clock, most=FEW, slow_seconds=5.0)


async def good(concurrency: Concurrency) -> None:
    async with concurrency.slot() as request:
        request.answered()


async def refused(concurrency: Concurrency) -> None:
    async with concurrency.slot() as request:
        request.refused()


class Requests:
    """Some requests under way together, each ended by hand."""

    def __init__(self, concurrency: Concurrency) -> None:
        self._concurrency = concurrency
        self._ends: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.running: list[int] = []

    async def begin(self, count: int) -> None:
        for _ in range(count):
            self._ends.append(asyncio.Event())
            self._tasks.append(asyncio.create_task(self._one(len(self._ends) - 1)))
        await turn_of_the_loop()

    async def end(self, *numbers: int, is_refused: bool = False) -> None:
        self._is_refused = is_refused
        for number in numbers:
            self._ends[number].set()
        await turn_of_the_loop()

    async def cancel(self, number: int) -> None:
        self._tasks[number].cancel()
        await turn_of_the_loop()

    async def _one(self, number: int) -> None:
        async with self._concurrency.slot() as request:
            self.running.append(number)
            await self._ends[number].wait()
            self.running.remove(number)
            if self._is_refused:
                request.refused()
            else:
                request.answered()


async def turn_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_overload_halves_what_was_under_way(concurrency: Concurrency) -> None:
    """Case 86: 429 says that too many are in the store's queue: half as many are sent from then on."""
    requests = Requests(concurrency)
    await requests.begin(6)

    await requests.end(0, is_refused=True)

    assert concurrency.limit == 3


async def test_requests_that_were_under_way_together_halve_once(concurrency: Concurrency) -> None:
    """One full queue refuses all of them: six halvings would stop the job for what one would have mended."""
    requests = Requests(concurrency)
    await requests.begin(6)

    await requests.end(0, 1, 2, 3, 4, 5, is_refused=True)
    assert concurrency.limit == 3

    await refused(concurrency)
    assert concurrency.limit == 1


async def test_slow_answers_count_as_overload(concurrency: Concurrency, clock: ScriptedClock) -> None:
    """A store that queues without bound never says 429; it gets slower until requests time out."""
    requests = Requests(concurrency)
    await requests.begin(4)
    clock.seconds = 5.1

    await requests.end(0)

    assert concurrency.limit == 2


async def test_time_spent_waiting_for_a_turn_is_not_the_stores(concurrency: Concurrency, clock: ScriptedClock) -> None:
    """Otherwise a limit that was cut would cut itself again, down to one."""
    for _ in range(4):
        await refused(concurrency)
    requests = Requests(concurrency)
    await requests.begin(2)
    clock.seconds = 4.0
    await requests.end(0)
    clock.seconds = 8.0

    await requests.end(1)

    assert concurrency.limit == 2, "4 seconds each, though the second had waited for 4 more"


async def test_limit_never_falls_below_one(concurrency: Concurrency) -> None:
    """With none allowed nothing would ever be learned again."""
    for _ in range(10):
        await refused(concurrency)

    assert concurrency.limit == 1


async def test_limit_grows_back_one_after_each_round_of_good_answers(concurrency: Concurrency) -> None:
    """Twice as many at once would fill the queue again at once."""
    await refused(concurrency)
    limits = []
    for _ in range(40):
        await good(concurrency)
        limits.append(concurrency.limit)

    assert limits[:6] == [2, 2, 3, 3, 3, 4]
    assert limits[-1] == FEW, "up to where it began, and no further"


async def test_request_without_an_answer_teaches_nothing(concurrency: Concurrency) -> None:
    """A connection that broke is the breaker's business: neither overload nor a good round."""
    await refused(concurrency)
    for _ in range(5):
        with pytest.raises(ConnectionError):
            async with concurrency.slot():
                raise ConnectionError

    assert concurrency.limit == 1


async def test_requests_beyond_the_limit_wait_in_order(concurrency: Concurrency) -> None:
    """A lane that came first must not starve."""
    requests = Requests(concurrency)
    await requests.begin(FEW + 2)
    assert requests.running == list(range(FEW))

    await requests.end(3)
    assert requests.running == [0, 1, 2, 4, 5, 6, 7, 8]

    await requests.end(0)
    assert requests.running == [1, 2, 4, 5, 6, 7, 8, 9]


async def test_turn_of_one_that_was_cancelled_goes_to_the_next(concurrency: Concurrency) -> None:
    """A partition is revoked while its batch waits: its turn must not be lost for ever."""
    for _ in range(4):
        await refused(concurrency)
    requests = Requests(concurrency)
    await requests.begin(3)
    await requests.cancel(1)

    await requests.end(0)

    assert requests.running == [2]


async def test_cancelled_in_the_moment_of_its_turn_passes_it_on(concurrency: Concurrency) -> None:
    """The race of the two: the turn was given, and the task ended before it could use it."""
    for _ in range(4):
        await refused(concurrency)
    requests = Requests(concurrency)
    await requests.begin(3)
    requests._is_refused = False
    requests._ends[0].set()
    await asyncio.sleep(0)  # the first has left, the second's turn is given, and it has not run yet

    await requests.cancel(1)

    assert requests.running == [2]
