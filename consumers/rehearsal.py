"""A rehearsal: today's handlers take dead letters and what is parked behind them, and everything is rolled back.

Nothing is locked for it, claimed or decided; the rows that handlers touch are locked for seconds at the most, and where
others hold one, the rehearsal gives way. So it says what would become of the letters if nobody else did anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from consumers.dispatch import hidden_failure
from consumers.failure import RetryPolicy
from consumers.ledger import Ledger
from consumers.never_committed import never_committed
from consumers.rehearsal_stage import Memory, Stage, Step, loose_steps
from consumers.rehearsed import Rehearsed
from consumers.replay_hands import Hands
from dlq.envelope import Place
from dlq.parking import OrderKey
from dlq.runs import Outcome
from dlq.sequences import beginnings, in_order_of_places, keys_of, letter_records, limit_silence, limit_waiting
from tidegate_kernel.errors import RetryLater, Transient

ONCE = RetryPolicy(name="rehearsal", attempts=3, unexpected_attempts=1)
"""How often a handler is tried: what is rolled back anyway has time for a collision, and none for hope."""

_LETTERS_AT_ONCE = 200
# A parking limit's default: what is behind so many is not tried.
_LONGEST_SEQUENCE = 1_000
# After so long a transaction takes up no other sequence: live consumers may wait for rows that handlers have touched.
_SECONDS_A_TRANSACTION = 2.0
_LONGEST_WAIT = timedelta(seconds=2)


class Rehearsal:
    """Rehearses a replay of `letters`. Use once."""

    def __init__(
        self,
        hands: Hands,
        ledger: Ledger,
        letters: Sequence[UUID],
        *,
        silence_limit: timedelta,
        on_wait: Callable[[Transient], None] = lambda _: None,
    ) -> None:
        self._hands, self._ledger, self._letters = hands, ledger, letters
        self._silence_limit, self._on_wait = silence_limit, on_wait
        self._memory = Memory(frozenset(letters))
        self._keys_done: set[OrderKey] = set()
        self._stopping = asyncio.Event()
        self.rehearsed = Rehearsed()

    def stop(self) -> None:
        """Asks it to end after the transaction in hand. Idempotent."""
        self._stopping.set()

    async def run(self) -> Rehearsed:
        """What would become of all letters; those that were not come to are `not_tried`.

        Raises Transient where Postgres, or what handlers need of it, stays away; TidegateError for a handler that ended
        the transaction.
        """
        async with self._ledger.statement() as connection:
            letters = await in_order_of_places(connection, self._letters)
        for start in range(0, len(letters), _LETTERS_AT_ONCE):
            steps = await self._steps(letters[start : start + _LETTERS_AT_ONCE])
            while steps and not self._stopping.is_set():
                steps = steps[await self._one_transaction(steps) :]
        self.rehearsed.outcomes[Outcome.NOT_TRIED] += len(self._letters) - self.rehearsed.outcomes.total()
        return self.rehearsed

    async def _steps(self, letters: Sequence[UUID]) -> Sequence[Step]:
        job = self._ledger.origin.job
        async with self._ledger.statement() as connection:
            keys = await keys_of(connection, letters)
            in_order = dict.fromkeys(key for letter in letters for key in keys.get(letter, ()))
            new = [key for key in in_order if key not in self._keys_done]
            links = await beginnings(connection, job, new, limit=_LONGEST_SEQUENCE) if new else {}
            loose = await letter_records(connection, [letter for letter in letters if letter not in keys])
        self._keys_done.update(new)
        of_none = [(letter, loose[letter]) for letter in letters if letter in loose]
        return [*loose_steps(of_none), *(Step(key, key.topic, links[key]) for key in new if key in links)]

    async def _one_transaction(self, steps: Sequence[Step]) -> int:
        """The first of the steps are rehearsed together, and rolled back. Returns how many."""
        tries = 0
        while True:
            try:
                return await self._rolled_back(steps)
            except Transient as error:
                hidden = None if isinstance(error, RetryLater) else hidden_failure(error)
                if hidden is not None:
                    record = hidden.arrival.record
                    self._memory.broke[Place(record.topic, record.partition, record.offset)] = hidden
                    continue
                tries += 1
                if tries > ONCE.attempts:
                    raise
                self._on_wait(error)
                await self._ledger.clock.sleep(ONCE.delay(tries, error))

    async def _rolled_back(self, steps: Sequence[Step]) -> int:
        count = 0
        async with self._ledger.statement() as connection, never_committed(connection):
            await limit_silence(connection, self._silence_limit)
            await limit_waiting(connection, _LONGEST_WAIT)
            stage = Stage(connection, self._hands, self._ledger, self._memory)
            for step in steps:
                if count and stage.seconds > _SECONDS_A_TRANSACTION:
                    break
                await stage.take(step)
                count += 1
        self.rehearsed.add(stage.found)
        self._memory.passed |= stage.passed
        self._memory.attempts.clear()
        return count
