"""A run over dead letters, worked off by one runner: paced, to be stopped at any time, to be resumed after any end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from consumers.batch import Attempts
from consumers.failure import RetryPolicy
from consumers.replay_hands import Hands
from consumers.replay_verdicts import Taken, Verdicts
from consumers.replay_work import Group, Sight, Work, look, see
from dlq.parking import OrderKey
from dlq.runs import (
    LEASE_SECONDS,
    Hold,
    Outcome,
    Place,
    RunState,
    decide,
    decided_in,
    give_back,
    has_ended,
    hold,
    outstanding,
)
from dlq.sequences import Link, keys_of, lock_letters, loose_keys
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Transient
from tidegate_kernel.postgres import Connection

# A pace below it is kept by smaller batches.
_LARGEST_BATCH = 500
_BATCHES_A_SECOND = 4
# To find the next letters of a run all that are left are sorted: once for so many batches.
_BATCHES_AT_ONCE = 20
# A wait is cut into pieces, after each of which the runner says that it lives.
_PIECE_SECONDS = LEASE_SECONDS / 3

Answer = TypeVar("Answer")


@dataclass(slots=True)
class ReplayTally:
    """What a runner has done: letters by what became of them, and parked events dealt with."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    parked: int = 0

    def note(self, taken: Taken) -> None:
        self.outcomes.update(taken.outcomes.values())
        self.parked += taken.parked

    @property
    def handled(self) -> int:
        """Letters and parked events."""
        return self.outcomes.total() + self.parked


class Replay:
    """Works off what is left of a run. `rate`: letters and parked events a second, at most. Use once.

    `on_taken` hears of every batch once it is final, `on_wait` of what makes it wait.
    """

    def __init__(
        self,
        hands: Hands,
        verdicts: Verdicts,
        *,
        policy: RetryPolicy,
        clock: Clock,
        rate: float | None = None,
        on_wait: Callable[[Transient], None] = lambda _: None,
        on_taken: Callable[[Taken], None] = lambda _: None,
    ) -> None:
        self._hands, self._verdicts, self._policy, self._clock = hands, verdicts, policy, clock
        self._rate, self._on_wait, self._on_taken = rate, on_wait, on_taken
        self._batch = _LARGEST_BATCH if rate is None else max(1, min(_LARGEST_BATCH, int(rate / _BATCHES_A_SECOND)))
        self._stopping = asyncio.Event()
        self._decided: set[UUID] = set()
        self._ahead = 0.0
        self._is_unsure = False
        self.tally = ReplayTally()

    def stop(self) -> None:
        """Asks the runner to end after the batch in hand. Idempotent."""
        self._stopping.set()

    async def run(self) -> bool:
        """Whether nothing is left to do; False where it was asked to stop. Letters not tried are as they were before.

        Raises LeaseLost where another runner has the run. An outage is waited out.
        """
        await self._work_off(await self._ask(self._loose_keys))
        while not self._stopping.is_set():
            places, keys = await self._ask(self._next)
            if places:
                await self._take_up(places, keys)
            elif self._is_unsure:
                # Whose events may go on now was in an answer that was lost, perhaps.
                self._is_unsure = False
                await self._work_off(await self._ask(self._loose_keys))
            else:
                await self._ask(partial(self._end, RunState.DONE))
                return True
        await self._ask(partial(self._end, RunState.STOPPED))
        return False

    async def _take_up(self, places: Sequence[Place], keys: dict[UUID, Sequence[OrderKey]]) -> None:
        """Each of the letters is decided, unless the runner is to stop."""
        self._decided.clear()
        for group in _groups(place for place in places if place.letter not in keys):
            for start in range(0, len(group.letters), self._batch):
                await self._work_off_letters(replace(group, letters=group.letters[start : start + self._batch]))
        await self._work_off(list(dict.fromkeys(key for place in places for key in keys.get(place.letter, ()))))
        left = [place.letter for place in places if place.letter not in self._decided]
        if left and (self._is_unsure or not self._stopping.is_set()):
            await self._ask(partial(self._leave_behind, left))

    async def _work_off_letters(self, group: Group) -> None:
        """Nothing of the group is left that this run can handle: a batch takes as many of it as fit into memory."""
        while group.letters and not (await self._step(group)).is_empty:
            group = replace(group, letters=[letter for letter in group.letters if letter not in self._decided])

    async def _work_off(self, keys: Sequence[OrderKey]) -> None:
        """The sequences of the keys are empty, or begin with what this run cannot handle."""
        pending = dict.fromkeys(keys)
        stuck: dict[OrderKey, Link] = {}
        while pending and not self._stopping.is_set():
            some = list(pending)[: self._batch]
            sight = await self._ask(partial(self._see, some))
            heads = sight.heads
            going = {key: head for key, head in heads.items() if head != stuck.get(key)}
            for key in (*some, *heads):
                if key not in going:
                    pending.pop(key, None)
            for group in _groups_of(going):
                taken = await self._step(group, sight)
                if taken.is_empty:
                    # Unless somebody else has just taken the head, or our own answer was lost: then there is another.
                    stuck |= {key: going[key] for key in group.keys}
                for key in taken.emptied:
                    pending.pop(key, None)
                pending |= dict.fromkeys(taken.freed)

    async def _step(self, group: Group, seen: Sight | None = None) -> Taken:
        """`seen`: the group's keys as they were just now."""
        attempts = Attempts()
        while not self._stopping.is_set():
            try:
                work = await self._once(partial(self._look, group, seen))
                if not work.entries:
                    return Taken()
                taken = await self._hands.attempt(work, attempts, self._verdicts)
            except Transient as error:
                attempts.tries += 1
                seen, self._is_unsure = None, True
                await self._wait(error, attempts.tries)
            else:
                await self._note(taken)
                return taken
        return Taken()

    async def _note(self, taken: Taken) -> None:
        self._tell(taken)
        self._decided |= taken.outcomes.keys()
        if taken.stop_asked_by is not None:
            self.stop()
        if self._rate is not None:
            now = self._clock.monotonic()
            self._ahead = max(now, self._ahead) + (len(taken.outcomes) + taken.parked) / self._rate
            await self._pause(self._ahead - now)

    def _tell(self, taken: Taken) -> None:
        self.tally.note(taken)
        if not taken.is_empty:
            self._on_taken(taken)

    # What it asks of Postgres.

    async def _next(self, connection: Connection) -> tuple[Sequence[Place], dict[UUID, Sequence[OrderKey]]]:
        if await hold(connection, self._held) is not None:
            self.stop()
        places = await outstanding(connection, self._held.run, limit=self._batch * _BATCHES_AT_ONCE)
        return places, dict(await keys_of(connection, [place.letter for place in places]))

    async def _loose_keys(self, connection: Connection) -> Sequence[OrderKey]:
        return await loose_keys(connection, self._held.job)

    async def _see(self, keys: Sequence[OrderKey], connection: Connection) -> Sight:
        """The keys, with others that a letter of theirs blocks, too: it is handled when it comes first in all."""
        sight = await see(connection, self._held, keys, limit=self._batch)
        others = {key for of_letter in sight.shared.values() for key in of_letter}.difference(keys)
        return await see(connection, self._held, [*keys, *others], limit=self._batch) if others else sight

    async def _look(self, group: Group, seen: Sight | None, connection: Connection) -> Work:
        return await look(connection, self._held, group, limit=self._batch, seen=seen)

    async def _leave_behind(self, letters: Sequence[UUID], connection: Connection) -> None:
        """Those of the letters that nothing has become of stay. What of them was decided in a batch whose answer was
        lost is told now."""
        async with connection.transaction():
            # Letters before the run, as whoever takes it from a runner that is late.
            await lock_letters(connection, self._held.run, letters)
            await hold(connection, self._held)
            known = await decided_in(connection, self._held.run, letters)
            behind = {} if self._stopping.is_set() else dict.fromkeys(set(letters) - known.keys(), Outcome.BEHIND)
            await decide(connection, self._held, behind, most_replays=self._verdicts.most_replays)
        self._tell(Taken({**known, **behind}))

    async def _end(self, state: RunState, connection: Connection) -> None:
        async with connection.transaction():
            if await has_ended(connection, self._held, state):
                return  # by us, in a COMMIT whose answer was lost
            await give_back(connection, self._held, state)

    async def _ask(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Returns the answer, however long Postgres is away. Raises LeaseLost; Transient once it is to stop."""
        tries = 0
        while True:
            try:
                return await self._once(ask)
            except Transient as error:
                tries += 1
                if self._stopping.is_set() and tries > self._policy.attempts:
                    raise
                await self._wait(error, tries)

    async def _once(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        async with self._verdicts.ledger.statement() as connection:
            return await ask(connection)

    @property
    def _held(self) -> Hold:
        return self._verdicts.held

    async def _wait(self, error: Transient, tries: int) -> None:
        self._on_wait(error)
        await self._pause(self._policy.delay(tries, error))

    async def _pause(self, seconds: float) -> None:
        """Returns after so many seconds, or when it is to stop; the run stays this runner's meanwhile."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0 and not self._stopping.is_set():
            await self._sleep(min(left, _PIECE_SECONDS))
            if left > _PIECE_SECONDS:
                await self._say_alive()

    async def _sleep(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([sleeping, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            stopping.cancel()

    async def _say_alive(self) -> None:
        try:
            await self._once(lambda connection: hold(connection, self._held))
        except Transient as error:
            self._on_wait(error)  # whether the run is still ours shows when Postgres is back


def _groups_of(heads: Mapping[OrderKey, Link]) -> Iterable[Group]:
    """The keys by the partition in which their sequences begin."""
    groups: dict[tuple[str, UUID, int], list[OrderKey]] = defaultdict(list)
    for key, head in heads.items():
        groups[key.topic, head.topic_id, head.partition].append(key)
    return [Group(*place, keys=of) for place, of in groups.items()]


def _groups(places: Iterable[Place]) -> Iterable[Group]:
    """The letters by partition, each in the order of its offsets."""
    letters: dict[tuple[str, UUID, int], list[UUID]] = defaultdict(list)
    for place in places:
        letters[place.topic, place.topic_id, place.partition].append(place.letter)
    return [Group(*place, letters=of) for place, of in letters.items()]
