"""Parking against replaying, and against what blocks a key: every interleaving of their statements is forced."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from consumers.batch import Attempts, Batch
from consumers.claims import BatchClaims, claims_of
from consumers.decoding import Arrival, Decoded
from consumers.letters import failure_of_arrival
from consumers.order import Gate, Order
from consumers.parking import Parking, ParkingLimit
from consumers.positions import advance
from consumers.replay_commands import CommandHands
from consumers.replay_opened import claim_fresh
from consumers.replay_verdicts import Verdicts
from consumers.replay_work import Group, Work, confirm, look
from dlq.parking import record_key
from dlq.runs import RunKind
from dlq.sequences import first_links, loose_keys
from inbox.store import Claimed, claim
from tests.integration.interleaving import Step, interleavings, play
from tests.integration.parking_bench import BAD, GARBAGE, GOOD, Bench, Note, make_bench, of_key
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import TOPIC_ID, MakeRoad, SentRecord
from tidegate import Context, handle
from tidegate_kernel.errors import Reason, Rejected, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Connection, Pool

_SILENCE = timedelta(seconds=30)
_LEFT = """
SELECT (SELECT count(*) FROM tidegate.blocked_key) AS keys, (SELECT count(*) FROM tidegate.parked) AS parked
"""


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    made = await make_bench(make_road)
    await made.pool.execute("CREATE SEQUENCE moment")
    return made


async def effect(connection: Connection, event: str) -> None:
    await connection.execute("INSERT INTO effect (id, n) VALUES ($1, nextval('moment'))", event)


class Settle:
    """What `CommandRoad` does with a batch, a statement at a time. Events whose ids begin with `bad` fail."""

    def __init__(self, bench: Bench, batch: Batch) -> None:
        self._pipeline, self._batch = bench.parts.pipeline, batch
        self._parking = Parking(bench.pool, self._pipeline._ledger.origin, Order(), ParkingLimit())
        self._decoded: Decoded = self._pipeline._decoder.decode(batch.records)
        self._claims: BatchClaims = claims_of(self._pipeline._ledger.rule, batch, self._decoded.events)
        self._claimed = Claimed(frozenset(), is_any_blocked=False)
        self._gate: Gate | None = None

    @property
    def steps(self) -> list[Step]:
        return [self.claim, self.look, self.handle, self.keep, commit]

    async def claim(self, connection: Connection) -> None:
        self._claimed = await claim(
            connection, self._batch.fence, self._claims.keys, silence_limit=_SILENCE, asks_for_blocked=True
        )

    async def look(self, connection: Connection) -> None:
        fresh, is_any_blocked = self._claims.fresh(self._claimed.duplicates), self._claimed.is_any_blocked
        self._gate = await self._parking.gate(
            connection, self._batch, self._decoded, fresh, is_any_blocked=is_any_blocked
        )

    async def handle(self, connection: Connection) -> None:
        assert self._gate is not None
        self._failed: list[Arrival] = []
        for arrival in self._claims.fresh(self._claimed.duplicates):
            if not self._gate.admits(arrival):
                continue
            if arrival.event.id.startswith("bad"):
                self._failed.append(arrival)
                self._gate.fail(arrival)
            else:
                await effect(connection, arrival.event.id)

    async def keep(self, connection: Connection) -> None:
        assert self._gate is not None
        claims = self._claims.by_offset()
        failures = [
            failure_of_arrival(
                self._batch,
                arrival,
                Rejected("bad"),
                reason=Reason.REJECTED,
                claim=claims[arrival.record.offset],
                handler="",
            )
            for arrival in self._failed
        ]
        letters = await self._pipeline._ledger.keep(connection, failures)
        fresh = self._claims.fresh(self._claimed.duplicates)
        await self._parking.keep(connection, self._batch, self._gate, claims=self._claims, fresh=fresh, letters=letters)
        await advance(connection, self._batch.fence, next_offset=self._batch.next_offset)


class Replaying:
    """What `CommandHands` does with the letters of a run, a few statements at a time."""

    def __init__(self, hands: CommandHands, verdicts: Verdicts, group: Group) -> None:
        self._hands, self._verdicts, self._group = hands, verdicts, group
        self._work: Work | None = None
        self.is_through = False
        """The run found nothing of its keys any more, and does not come back to them."""

    @property
    def steps(self) -> list[Step]:
        return [self.look, self.confirm, self.handle, self.write]

    async def look(self, connection: Connection) -> None:
        self._work = await look(connection, self._verdicts.held, self._group, limit=100)

    async def confirm(self, connection: Connection) -> None:
        assert self._work is not None
        try:
            await confirm(connection, self._verdicts.held, self._work, silence_limit=_SILENCE)
        except Transient:
            self._work = None  # changed meanwhile: the runner looks again

    async def handle(self, connection: Connection) -> None:
        if self._work is not None:
            self._opened = self._hands._open(self._work, Attempts())
            fresh = await claim_fresh(connection, self._verdicts.held.job, self._opened)
            for arrival in fresh.arrivals:
                await effect(connection, arrival.event.id)

    async def write(self, connection: Connection) -> None:
        if self._work is not None:
            await self._verdicts.write(connection, self._work, self._opened.made)
        await commit(connection)
        left = await first_links(connection, self._verdicts.held.job, self._group.keys)
        self.is_through = self._work is not None and not left


async def commit(connection: Connection) -> None:
    await connection.execute("COMMIT")


async def batch_of(bench: Bench, ids: list[str], *, key: bytes, partition: int) -> Batch:
    place = TopicPartition("orders", partition)
    first = (await bench.position(place, 0)).next_offset
    records = [replace(of_key(first + n, key, id=each), partition=partition) for n, each in enumerate(ids)]
    fence = bench.parts.steward.fence(place, bench.places[place])
    bench.places[place] = replace(bench.places[place], next_offset=first + len(ids))
    return Batch(fence, TOPIC_ID, records, first + len(ids))


class Meeting:
    """A run over the dead letter of a key meets a batch of another partition, in every order of their statements."""

    def __init__(self, bench: Bench, replays: ReplayBench) -> None:
        self._bench, self._replays = bench, replays
        self.effects: list[str] = []
        self.ends = set[tuple[int, int]]()
        """How many events the run took up behind its letter, and how many keys were blocked when it had ended."""

    async def play(self, schedule: str, *, letter: SentRecord, late: str) -> None:
        """Afterwards the run has come to its end, and the batch is settled."""
        first = self._bench.places[TopicPartition("orders", 0)].next_offset
        assert letter.key is not None
        await self._bench.settle([replace(letter, offset=first)])
        await self._bench.pool.execute("UPDATE tidegate.dead_letter SET value = $1 WHERE value = $2", GOOD, GARBAGE)
        batch = await batch_of(self._bench, [late], key=letter.key, partition=0)
        held = await self._replays.begin()
        ledger, hands = await self._replays._hands(RunKind.REPLAY)
        assert isinstance(hands, CommandHands)
        key = record_key(batch.records[0])
        assert key is not None
        verdicts = Verdicts(ledger, held, 5, "tests", "", _SILENCE)
        replaying = Replaying(hands, verdicts, Group("orders", TOPIC_ID, 0, keys=[key]))

        collided = await play(self._bench.pool, schedule, Settle(self._bench, batch).steps, replaying.steps)

        async with self._bench.pool.acquire() as connection:
            loose = await loose_keys(connection, held.job)
        assert not (replaying.is_through and loose), f"{schedule}: an event waits behind nothing"
        if "A" in collided:
            await play(self._bench.pool, "A" * 5, Settle(self._bench, batch).steps, [])
        await self._replays.work_off(held)
        self.effects = await self._told()
        self.ends.add(((await self._replays.run(held)).parked, await self._bench.blocked_keys()))
        await self._replays.replay()  # what failed as a letter of its own
        self.effects += await self._told()
        assert tuple(await self._bench.pool.fetchrow(_LEFT) or ()) == (0, 0), f"{schedule}: something was left behind"

    async def _told(self) -> list[str]:
        rows = await self._bench.pool.fetch("DELETE FROM effect RETURNING id, n")
        return [row["id"] for row in sorted(rows, key=lambda row: row["n"])]


@pytest.fixture
def meeting(bench: Bench, pool: Pool, database: str) -> Meeting:
    replays = ReplayBench(pool, database)

    async def moment(command: Note, ctx: Context[None]) -> None:
        await ctx.db.execute("INSERT INTO effect (id, n) VALUES ($1, nextval('moment'))", command.id)

    replays.handlers = [handle(Note, moment)]
    return Meeting(bench, replays)


@pytest.mark.timeout(300)
async def test_parking_and_replaying_a_key_can_meet_anywhere(meeting: Meeting) -> None:
    """G4: a run empties a key while the key's next event arrives. At whatever moment: the event acts once, after its
    predecessor, by its consumer or by the run; and neither it nor the key is left behind."""
    for number, schedule in enumerate(interleavings(5, 4)):
        dead, late = f"bad{number}", f"late{number}"
        await meeting.play(schedule, letter=of_key(0, b"k%d" % number, BAD, id=dead), late=late)
        assert meeting.effects == [dead, late], schedule
    assert meeting.ends == {(1, 0), (0, 0)}, "both ends were reached"


@pytest.mark.timeout(300)
async def test_a_key_that_is_emptied_and_blocked_anew_keeps_its_order(meeting: Meeting) -> None:
    """G4: the key's next event fails by itself while a run empties the key. It is parked and handled by the run, or is
    a letter that blocks the key once more, for the next run."""
    for number, schedule in enumerate(interleavings(5, 4)):
        dead, late = f"bad{number}", f"bad-late{number}"
        await meeting.play(schedule, letter=of_key(0, b"k%d" % number, BAD, id=dead), late=late)
        assert meeting.effects == [dead, late], schedule
    assert meeting.ends == {(1, 0), (0, 1)}, "both ends were reached"


@pytest.mark.timeout(300)
async def test_an_event_arrives_once_more_while_its_letter_is_replayed(meeting: Meeting) -> None:
    """G2: its letter had no claim, undecodable as it was, so the inbox must decide between the two: by a lock that one
    of them waits for, or in a deadlock that one of them loses. It acts once."""
    for number, schedule in enumerate(interleavings(5, 4)):
        event = f"e-{number}"
        await meeting.play(schedule, letter=of_key(0, b"k%d" % number, GARBAGE, id=event), late=event)
        assert meeting.effects == [event], schedule


@pytest.mark.timeout(300)
async def test_a_key_cannot_pass_its_own_fresh_dead_letter(bench: Bench) -> None:
    """G4: an event that can never be handled is delivered twice, by two partitions at once. Whichever takes it, at
    whatever moment: what follows it waits, also behind a mere duplicate."""
    died_here = 0
    for number, schedule in enumerate(interleavings(5, 5)):
        key, bad, late = b"k%d" % number, f"bad{number}", f"late{number}"
        one = await batch_of(bench, [bad], key=key, partition=1)
        two = await batch_of(bench, [bad, late], key=key, partition=2)

        await play(bench.pool, schedule, Settle(bench, one).steps, Settle(bench, two).steps)

        assert await bench.effects() == [], schedule
        assert await bench.parked() == [late], schedule
        letters = await bench.pool.fetch("SELECT partition FROM tidegate.dead_letter")
        assert len(letters) == 1, schedule
        died_here += letters[0]["partition"] == 2
        await bench.pool.execute("DELETE FROM tidegate.parked; DELETE FROM tidegate.blocking_letter")
        await bench.pool.execute("DELETE FROM tidegate.blocked_key; DELETE FROM tidegate.dead_letter")
    assert 0 < died_here < number, "both ends were reached"
