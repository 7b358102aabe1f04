"""A record that the client cannot hand over, and Postgres away at that very moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.notes import make_loop, noted, noted_ids, running, stands_at
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.postgres import Pool
from tidegate_kernel.source import UnreadableRecord


@pytest.fixture
def broker_with_a_bad_record(unique_name: Callable[[str], str]) -> tuple[MemoryBroker, str]:
    """Offset 1 of three is the one that the client refuses."""
    broker, topic = MemoryBroker(), unique_name("unread")
    broker.create_topic(topic, 1)
    for n in range(3):
        broker.append(noted(topic, n))
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    log.faults[1] = UnreadableRecord("the name of a header is not UTF-8", offset=1)
    return broker, topic


async def test_an_unreadable_record_becomes_a_dead_letter_also_at_the_second_try(
    pool: Pool, database: str, broker_with_a_bad_record: tuple[MemoryBroker, str]
) -> None:
    """G1: its first burial is rolled back by an outage. Tried again as an ordinary record it would be one without a
    value, which a ConsumerJob passes over: the position would move past it and nobody would ever know."""
    broker, topic = broker_with_a_bad_record
    loop = await make_loop(pool, database, broker, topic)
    # As a demoted primary: the letter cannot be written (25006), while records that read nothing else go on.
    await pool.execute(_REFUSE_FIRST_LETTER)

    async with running(loop):
        await stands_at(pool, 3)

    assert await pool.fetchval("SELECT last_value FROM burials") == 2
    letters = await pool.fetch('SELECT "offset", reason FROM tidegate.dead_letter')
    assert [tuple(letter) for letter in letters] == [(1, "client_parse")]
    assert await noted_ids(pool) == ["e0", "e2"]


# A sequence is not rolled back: only the first burial meets the outage.
_REFUSE_FIRST_LETTER = """
CREATE SEQUENCE burials;
CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('burials') = 1 THEN
        RAISE EXCEPTION 'cannot execute INSERT in a read-only transaction' USING ERRCODE = '25006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER away BEFORE INSERT ON tidegate.dead_letter FOR EACH ROW EXECUTE FUNCTION away();
"""
