"""Letters from their topic into the database, as the live road would keep them: claimed, their keys blocked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from dlq.corrections import keep_discards
from dlq.importing.rows import Restored, known_letters, restore_letters
from dlq.importing.told import ToldLetter
from dlq.letters import Origin
from dlq.parking import Blocking, OrderKey, blocked_among, park, record_key
from dlq.states import UNRESOLVED, LetterState
from inbox.identity import ClaimKey
from inbox.store import claim_for_letters, register_job
from tidegate.jobs.declaration import Job
from tidegate.jobs.decoding import decoder_of, order_of
from tidegate_kernel.audit import permitted
from tidegate_kernel.clock import Clock
from tidegate_kernel.event import JobId
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, Pool, translated_errors

_DISCARDED = "discarded before the import, as the DLQ topic tells"


class Restoring:
    """Writes chunks of the letters of one job, each in a transaction and a deed of its own."""

    def __init__(self, job: Job, origin: Origin, database: Connection | Pool, *, actor: Actor, clock: Clock) -> None:
        self._job, self._origin, self._database, self._actor, self._clock = job, origin, database, actor, clock
        self._order, self._decoder = order_of(job), decoder_of(job)

    def deed(self, letters: Sequence[Restored]) -> Deed:
        """What is done with `letters`, and audited."""
        parameters = {"topic": self._origin.dlq_topic, "letters": len(letters)}
        return Deed(Action.DLQ_IMPORT, self._job.code, parameters=parameters)

    async def restore(self, chunk: Sequence[Restored]) -> Mapping[LetterState, int]:
        """The letters of `chunk` are in the database; returns how many were written, by state.

        What was there stays as it is. A letter that stands has its event's id claimed, for the time at which it failed
        first; one whose id somebody else has claimed comes in as already processed. Of a job with order "park" it
        blocks its key. A discarded one's record is passed by when it is read again. Raises Denied, Transient.
        """
        fresh = await self._unknown(chunk)
        if not fresh:
            return {}
        async with permitted(self._database, self._actor, self.deed(fresh)) as connection:
            job = await register_job(
                connection,
                service=self._origin.service,
                code=self._job.job_code,
                claim_rule=self._job.claim_rule.spell(),
            )
            return await self._write(connection, job, await self._claimed(connection, job, fresh))

    async def note_nothing(self) -> None:
        """The audit says that there was nothing to bring. Raises Denied, Transient."""
        async with permitted(self._database, self._actor, self.deed([])):
            pass

    async def _unknown(self, chunk: Sequence[Restored]) -> list[Restored]:
        with translated_errors("look for letters"):
            known = await known_letters(self._database, [one.letter.id for one in chunk])
        return [one for one in chunk if one.letter.id not in known]

    async def _claimed(self, connection: Connection, job: JobId, letters: Sequence[Restored]) -> list[Restored]:
        """The letters, with those already processed whose events somebody else has claimed: also one of the chunk."""
        claims: dict[tuple[object, UUID], Restored] = {}
        for one in letters:
            if one.state in UNRESOLVED and one.letter.claim is not None:
                claims.setdefault(one.letter.claim, one)
        owners = list(claims.values())
        keys = [ClaimKey(*one.letter.claim) for one in owners if one.letter.claim is not None]
        days = [one.letter.first_failed_at.date() for one in owners]
        taken = await claim_for_letters(connection, job, keys, made_on=days)
        ours = {one.letter.id for index, one in enumerate(owners) if index not in taken}
        return [
            one
            if one.state not in UNRESOLVED or one.letter.claim is None or one.letter.id in ours
            else replace(one, state=LetterState.ALREADY_PROCESSED, decided_at=self._clock.now())
            for one in letters
        ]

    async def _write(
        self, connection: Connection, job: JobId, letters: Sequence[Restored]
    ) -> Mapping[LetterState, int]:
        keys = self._blocked_keys(letters)
        # In the consumer's order: ids, keys, letters. It may hold a key while it waits for a letter of this chunk.
        await blocked_among(connection, job, set(keys.values()))
        written = await restore_letters(connection, job, letters)
        blocking = [
            Blocking(one.letter.id, keys[one.letter.id], one.letter.offset)
            for one in letters
            if one.letter.id in written and one.letter.id in keys
        ]
        if blocking:
            await park(connection, job, blocking, [])
        restored = [one for one in letters if one.letter.id in written]
        discarded = [one.letter.id for one in restored if one.state is LetterState.DISCARDED]
        if discarded:
            await keep_discards(connection, discarded, reason=_DISCARDED, made_by=self._actor.name)
        return Counter(one.state for one in restored)

    def _blocked_keys(self, letters: Sequence[Restored]) -> dict[UUID, OrderKey]:
        """The key that each letter blocks; those that block none are left out."""
        standing = [one.letter for one in letters if one.state in UNRESOLVED and self._is_ours(one.letter)]
        keys = {letter.id: self._key(letter) for letter in standing}
        return {letter: key for letter, key in keys.items() if key is not None}

    def _is_ours(self, letter: ToldLetter) -> bool:
        """Whether the job reads its topic: a misfit stands in the DLQ topic, and has no order."""
        return self._order is not None and self._decoder.reads(letter.topic)

    def _key(self, letter: ToldLetter) -> OrderKey | None:
        if self._order is None or self._order.of is None or letter.value is None:
            return record_key(letter)
        events = self._decoder.decode([letter]).events
        return self._order.key(events[0]) if events else record_key(letter)
