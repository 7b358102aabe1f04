"""Events wait behind a dead letter of their key: G4 past a failure, on real Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlq.parking import record_key
from dlq.sequences import first_links, keys_of, lock_keys, take_out
from tests.integration.parking_bench import BAD, GARBAGE, GOOD, Bench, Note, make_bench, note, of_key
from tests.integration.road import TOPIC_ID, MakeRoad
from tidegate import Context, Event, ParkingLimit, Rejected, RetryLater, handle, handle_batch
from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import TopicPartition

K, L = b"k", b"l"


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    return await make_bench(make_road)


async def test_later_events_of_a_key_wait_behind_its_dead_letter(bench: Bench) -> None:
    """G4, Case 60: an account that is closed although its opening failed is worse than one that waits: in the batch of
    the failure and in every later one; other keys go on."""
    first = await bench.settle([of_key(0, K), of_key(1, K, BAD), of_key(2, L), of_key(3, K)])
    second = await bench.settle([of_key(4, K), of_key(5, L)])

    assert await bench.effects() == ["e0", "e2", "e5"]
    assert await bench.letters() == [1]
    assert await bench.parked() == ["e3", "e4"]
    assert [(each.applied, each.parked, len(each.failures)) for each in (first, second)] == [(2, 1, 1), (1, 1, 0)]


async def test_a_parked_event_keeps_its_claim(bench: Bench) -> None:
    """G2: a second delivery of an event that waits must not act in its place, nor wait beside it."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])

    again = await bench.settle([of_key(2, K, id="e1"), of_key(3, L, id="e1")])

    assert (again.applied, again.duplicates, again.parked) == (0, 2, 0)
    assert await bench.parked() == ["e1"]
    assert await bench.effects() == []


async def test_what_is_parked_is_kept_whole(bench: Bench) -> None:
    """G7: it is handled from here some day, when its topic may have forgotten it."""
    waiting = of_key(1, K, b'{"n": 7 }')
    headers = [*waiting.headers, ("twice", b"\x00\xff"), ("twice", None)]
    await bench.settle([of_key(0, K, BAD), replace(waiting, headers=headers)])

    row = await bench.pool.fetchrow("SELECT * FROM tidegate.parked")

    assert row is not None
    names = [name.decode() for name in row["header_names"]]
    assert list(zip(names, row["header_values"], strict=True)) == headers
    assert (row["key"], row["value"], row["offset"], row["topic_id"]) == (K, b'{"n": 7 }', 1, TOPIC_ID)
    assert (row["event_id"], row["event_type"]) == ("e1", "noted")
    assert row["recorded_at"].timestamp() * 1000 == waiting.timestamp
    assert await bench.pool.fetchval("SELECT count(*) FROM tidegate.inbox WHERE id = $1", row["claimed_id"]) == 1


async def test_a_record_that_cannot_be_decoded_blocks_its_key(bench: Bench) -> None:
    """Nobody knows what it would have said; what came before it in its batch is handled."""
    await bench.settle([of_key(0, K), of_key(1, K, GARBAGE), of_key(2, K), of_key(3, L)])
    await bench.settle([of_key(4, K)])

    assert await bench.effects() == ["e0", "e3"]
    assert await bench.parked() == ["e2", "e4"]


async def test_a_record_that_ended_its_processes_blocks_its_key(bench: Bench) -> None:
    """It was never decoded when it is set aside, but its key is known."""
    crashed = Poison("three owners ended", reason=Reason.WORKER_CRASHED)
    await bench.settle([of_key(0, K)], crashed=crashed)
    await bench.settle([of_key(1, K), of_key(2, L)])

    assert await bench.effects() == ["e2"]
    assert await bench.parked() == ["e1"]


async def test_events_without_a_key_have_no_order(bench: Bench) -> None:
    """Whoever sends no key says that order does not matter: one failure must not hold back a whole partition."""
    await bench.settle([of_key(0, None, BAD), of_key(1, None), of_key(2, None, GARBAGE), of_key(3, None)])

    assert await bench.effects() == ["e1", "e3"]
    assert await bench.blocked_keys() == 0


async def test_a_key_is_blocked_on_every_partition_of_its_topic(bench: Bench) -> None:
    """After a change of the partition count the key's later events come by another road; other topics are others'."""
    await bench.settle([of_key(0, K, BAD)], partition=0)
    await bench.settle([of_key(0, K, id="moved"), of_key(1, L, id="other")], partition=7)
    await bench.settle([of_key(0, K, id="returned")], topic="returns")

    assert await bench.parked() == ["moved"]
    assert await bench.effects() == ["other", "returned"]


async def test_a_restarted_owner_knows_what_is_blocked(make_road: MakeRoad) -> None:
    """It stands in Postgres: another process, another epoch, the same order."""
    first = await make_bench(make_road)
    await first.settle([of_key(0, K, BAD)])
    next_owner = await make_bench(make_road)

    await next_owner.settle([of_key(1, K)])

    assert await next_owner.parked() == ["e1"]


async def test_tenants_share_the_order_of_a_key(bench: Bench) -> None:
    """What cannot be decoded has no tenant, and has to block the key all the same."""
    other = of_key(1, K)
    await bench.settle([of_key(0, K, BAD), replace(other, headers=[*other.headers, ("ce_tenantid", b"north")])])

    assert await bench.parked() == ["e1"]


async def test_a_batch_handler_is_not_given_what_has_to_wait(make_road: MakeRoad) -> None:
    """Found by halving, a failure holds back the rest of its key, whichever half that is in."""
    calls: list[list[str]] = []

    async def note_all(commands: Sequence[Note], ctx: Context[None]) -> None:
        calls.append([command.id for command in commands])
        for command in commands:
            await note(command, ctx)

    bench = await make_bench(make_road, [handle_batch(Note, note_all)])
    records = [of_key(n, b"%d" % (n % 3), BAD if n == 4 else GOOD) for n in range(12)]
    await bench.settle(records)
    await bench.settle([of_key(n, b"%d" % (n % 3)) for n in range(12, 15)])

    assert await bench.effects() == [f"e{n}" for n in range(15) if n % 3 != 1 or n == 1]
    assert await bench.parked() == ["e7", "e10", "e13"]
    assert calls[-1] == ["e12", "e14"]


async def test_a_failure_while_preparing_blocks_the_key(make_road: MakeRoad) -> None:
    """What is prepared outside the transaction may fail there; and what waits is not blamed for having failed too."""

    async def prepare(command: Note, _: None) -> int:
        if command.n < 0:
            raise Rejected("negative")
        return command.n

    async def prepared(command: Note, ctx: Context[None], n: int) -> None:
        await note(command, ctx)

    bench = await make_bench(make_road, [handle(Note, prepared, prepare=prepare)])
    await bench.settle([of_key(0, K), of_key(1, K, BAD), of_key(2, K), of_key(3, K, BAD)])

    assert (await bench.letters(), await bench.parked(), await bench.effects()) == ([1], ["e2", "e3"], ["e0"])


async def test_what_follows_an_event_that_is_tried_again_is_not_tried(make_road: MakeRoad) -> None:
    """Without its predecessor it may fail for that alone, and must not use up its attempts for it."""
    seen: list[str] = []
    trouble = iter([RetryLater(after=0), RetryLater(after=0)])

    async def unlucky(command: Note, ctx: Context[None]) -> None:
        seen.append(command.id)
        if command.id == "e0":
            for error in trouble:
                raise error
        await note(command, ctx)

    bench = await make_bench(make_road, [handle(Note, unlucky)])
    await bench.settle([of_key(0, K), of_key(1, K)])

    assert await bench.effects() == ["e0", "e1"]
    assert seen == ["e0", "e0", "e0", "e1"]


async def test_a_letter_that_somebody_has_decided_about_blocks_nothing(bench: Bench) -> None:
    """A record that was discarded and is read again, as by a repair, must not stop its key once more."""
    await bench.settle([of_key(0, K, GARBAGE)])
    await _deal_with_letter(bench, "discarded")
    await bench.pool.execute("UPDATE tidegate.position SET next_offset = 0")
    bench.places[TopicPartition("orders", 0)] = replace(bench.places[TopicPartition("orders", 0)], next_offset=0)

    await bench.settle([of_key(0, K, GARBAGE), of_key(1, K)])

    assert await bench.effects() == ["e1"]
    assert await bench.blocked_keys() == 0


async def test_order_skip_lets_later_events_pass(make_road: MakeRoad) -> None:
    """Sums do not mind: such a job says so, and nothing of it ever waits."""
    bench = await make_bench(make_road, order="skip")
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, K, GARBAGE), of_key(3, K)])

    assert await bench.effects() == ["e1", "e3"]
    assert await bench.blocked_keys() == 0


# A key of the job's own.


def by_customer(event: Event[Any]) -> str | None:
    return event.data.customer or None


def of_customer(offset: int, key: bytes, customer: str, n: int = 1) -> Any:
    return of_key(offset, key, b'{"n":%d,"customer":"%s"}' % (n, customer.encode()))


async def test_a_job_may_order_by_what_its_events_say(make_road: MakeRoad) -> None:
    """The record's key is the order's, and the job's order is the customer's."""
    bench = await make_bench(make_road, order_key=by_customer)
    await bench.settle([of_customer(0, b"o1", "ada", -1), of_customer(1, b"o2", "ada"), of_customer(2, b"o1", "bob")])
    await bench.settle([of_customer(3, b"o3", "ada"), of_customer(4, b"o1", "")])

    assert await bench.parked() == ["e1", "e3"]
    assert await bench.effects() == ["e2", "e4"]


async def test_what_cannot_be_decoded_blocks_by_the_records_key(make_road: MakeRoad) -> None:
    """It has no other. Who waits for it holds back those of its own key, too, whatever record key they have."""
    bench = await make_bench(make_road, order_key=by_customer)
    await bench.settle(
        [
            of_key(0, b"o1", GARBAGE),
            of_customer(1, b"o1", "ada"),
            of_customer(2, b"o2", "ada"),
            of_customer(3, b"o2", "bob"),
        ]
    )
    await bench.settle([of_customer(4, b"o3", "ada"), of_customer(5, b"o1", "cid"), of_customer(6, b"o3", "bob")])

    assert await bench.effects() == ["e3", "e6"]
    assert sorted(await bench.parked()) == ["e1", "e2", "e4", "e5"]
    waiting = await bench.pool.fetch("SELECT event_id FROM tidegate.parked WHERE waits_for IS NOT NULL ORDER BY id")
    assert [row["event_id"] for row in waiting] == ["e1", "e5"]


async def test_an_order_key_that_raises_leaves_the_records_key(make_road: MakeRoad) -> None:
    """A defect in it must not stop the partition, nor lose the order altogether."""

    def broken(event: Event[Any]) -> str:
        raise LookupError("no customer")

    bench = await make_bench(make_road, order_key=broken)
    await bench.settle([of_key(0, K, BAD), of_key(1, K), of_key(2, L)])

    assert (await bench.parked(), await bench.effects()) == (["e1"], ["e2"])


# Bounds.


async def test_at_the_bound_of_a_key_the_partition_stops_before_the_event(make_road: MakeRoad) -> None:
    """Parking without end would fill the database; what is before the event is settled, and nothing is lost."""
    bench = await make_bench(make_road, parking=ParkingLimit(per_key=2))
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])

    outcome = await bench.settle([of_key(2, L), of_key(3, K), of_key(4, L), of_key(5, K), of_key(6, L)])

    assert outcome.stop is not None
    assert (outcome.stop.offset, outcome.stop.full) == (5, record_key(of_key(5, K)))
    assert "2 events are parked behind a dead letter of the same key" in outcome.stop.why
    assert await bench.parked() == ["e1", "e3"]
    assert await bench.effects() == ["e2", "e4"]
    assert await bench.pool.fetchval("SELECT next_offset FROM tidegate.position") == 5


async def test_the_job_s_bound_counts_all_its_keys(make_road: MakeRoad) -> None:
    """A thousand keys with a thousand events each are too much as well; and a full batch alone stops before itself."""
    bench = await make_bench(make_road, parking=ParkingLimit(per_job=2))
    await bench.settle([of_key(0, K, BAD), of_key(1, L, BAD), of_key(2, K), of_key(3, L)])

    outcome = await bench.settle([of_key(4, K)])

    assert outcome.stop is not None
    assert outcome.stop.offset == 4
    assert outcome.applied + outcome.parked == 0
    assert len(await bench.parked()) == 2


# A key's sequence, as whoever deals with its letters sees it.


async def test_a_sequence_is_taken_from_its_head(bench: Bench) -> None:
    """Replay has to go in the order of the key, its letters among what waits; the last one frees the key."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await bench.settle([of_key(2, K), of_key(3, K, GARBAGE), of_key(4, K)])
    key = record_key(of_key(0, K))
    assert key is not None
    offsets, blocked = [], []

    async with bench.pool.acquire() as connection, connection.transaction():
        assert await lock_keys(connection, bench.parts.id, [key])
        while link := (await first_links(connection, bench.parts.id, [key])).get(key):
            offsets.append(link.offset)
            letters, events = ([link.letter], []) if link.letter else ([], [link.parked or 0])
            await take_out(connection, bench.parts.id, letters=letters, events=events, keys=[key])
            blocked.append(bool(await lock_keys(connection, bench.parts.id, [key])))

    assert offsets == [0, 1, 2, 3, 4]
    assert blocked == [True, True, True, True, False]
    await bench.settle([of_key(5, K)])
    assert await bench.effects() == ["e5"]


async def test_a_key_stays_blocked_while_anything_of_it_waits(bench: Bench) -> None:
    """With its letter discarded, what was parked behind it still comes before what arrives now."""
    await bench.settle([of_key(0, K, BAD), of_key(1, K)])
    await _deal_with_letter(bench, "discarded")

    await bench.settle([of_key(2, K)])

    assert await bench.parked() == ["e1", "e2"]
    assert await bench.effects() == []


async def _deal_with_letter(bench: Bench, state: str) -> None:
    async with bench.pool.acquire() as connection, connection.transaction():
        letter = await connection.fetchval("SELECT id FROM tidegate.dead_letter")
        keys = (await keys_of(connection, [letter]))[letter]
        assert await lock_keys(connection, bench.parts.id, keys)
        await connection.execute("UPDATE tidegate.dead_letter SET state = $2 WHERE id = $1", letter, state)
        await take_out(connection, bench.parts.id, letters=[letter], events=[], keys=keys)
