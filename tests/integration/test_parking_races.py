"""Parking against releasing, and against what blocks a key: every interleaving of their statements is forced."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from consumers.batch import Batch
from consumers.claims import BatchClaims, claims_of
from consumers.decoding import Arrival, Decoded
from consumers.letters import failure_of_arrival
from consumers.order import Gate, Order
from consumers.parking import Parking, ParkingLimit
from consumers.positions import advance
from dlq.parking import OrderKey, head_of, lock_key, record_key, take_out
from inbox.store import Claimed, claim
from tests.integration.interleaving import Step, interleavings, play
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.road import TOPIC_ID, MakeRoad
from tidegate_kernel.errors import Reason, Rejected
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Connection

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


class Replay:
    """Deals with a key's sequence from its head to its end, in one transaction."""

    def __init__(self, bench: Bench, key: OrderKey) -> None:
        self._job, self._key = bench.parts.id, key

    @property
    def steps(self) -> list[Step]:
        return [self.lock, self.empty, commit]

    async def lock(self, connection: Connection) -> None:
        await lock_key(connection, self._job, self._key)

    async def empty(self, connection: Connection) -> None:
        while (head := await head_of(connection, self._job, self._key)) is not None:
            query = "SELECT event_id FROM tidegate.dead_letter WHERE id = $1"
            if head.letter is None:
                query = "SELECT event_id FROM tidegate.parked WHERE id = $1"
            await effect(connection, await connection.fetchval(query, head.letter or head.parked))
            await take_out(connection, self._job, self._key, head)


async def commit(connection: Connection) -> None:
    await connection.execute("COMMIT")


async def batch_of(bench: Bench, ids: list[str], *, key: bytes, partition: int) -> Batch:
    place = TopicPartition("orders", partition)
    first = (await bench.position(place, 0)).next_offset
    records = [replace(of_key(first + n, key, id=each), partition=partition) for n, each in enumerate(ids)]
    fence = bench.parts.steward.fence(place, bench.places[place])
    bench.places[place] = replace(bench.places[place], next_offset=first + len(ids))
    return Batch(fence, TOPIC_ID, records, first + len(ids))


@pytest.mark.timeout(300)
async def test_parking_and_releasing_a_key_can_meet_anywhere(bench: Bench) -> None:
    """G4: a replay empties a key while the key's next event arrives. At whatever moment: the event acts once, after its
    predecessor, by its consumer or by the replay; and neither it nor the key is left behind."""
    by_consumer = 0
    for number, schedule in enumerate(interleavings(5, 3)):
        key, dead, late = b"k%d" % number, f"bad{number}", f"late{number}"
        first = bench.places[TopicPartition("orders", 0)].next_offset
        await bench.settle([of_key(first, key, BAD, id=dead)])
        batch = await batch_of(bench, [late], key=key, partition=0)
        order_key = record_key(batch.records[0])
        assert order_key is not None

        await play(bench.pool, schedule, Settle(bench, batch).steps, Replay(bench, order_key).steps)

        effects = await bench.pool.fetch("DELETE FROM effect RETURNING id, n, xmin::text AS by")
        told = sorted((row["n"], row["id"]) for row in effects)
        assert [event for _, event in told] == [dead, late], f"{schedule}: {told}"
        assert tuple(await bench.pool.fetchrow(_LEFT) or ()) == (0, 0), f"{schedule}: something was left behind"
        by_consumer += len({row["by"] for row in effects}) == 2
    assert 0 < by_consumer < number, "both ends were reached"


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
