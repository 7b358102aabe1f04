"""From facts to the sentence that an operator reads at night: one test for each thing that can be in the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from consumers.intents import Intent, IntentKind
from consumers.presence import State
from tidegate.console.explanation import Cause, Explanation, explain
from tidegate.console.facts import UNSEEN_SECONDS, Facts, Said
from tidegate.console.lag import LivePosition, Log
from tidegate.console.views import View
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.source import LogRange

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOPIC_ID = UUID(int=2**100)
P3 = TopicPartition("orders", 3)

WELL = Facts(
    job="ledger",
    partition=P3,
    position=LivePosition(40, TOPIC_ID, "host:7", NOW),
    log=Log(LogRange(10, 45), TOPIC_ID),
    said=Said("host:7", State.MOVING, "", 0.0, 1.0),
    has_workers=True,
)


def intent(
    kind: IntentKind = IntentKind.PAUSE,
    *,
    topic: str | None = None,
    partition: int | None = None,
    tenant: str | None = None,
    until: datetime | None = None,
) -> Intent:
    return Intent(1, kind, topic, partition, tenant, "bank is closed", "alice", NOW, until, None)


def says(state: State, detail: str = "", *, since: float = 65.0, seen: float = 1.0) -> Facts:
    return replace(WELL, said=Said("host:7", state, detail, since, seen))


def test_a_partition_that_moves_says_how_far_it_has_to_go() -> None:
    """The commonest answer: nothing is wrong, there is work to do."""
    assert explain(WELL) == Explanation(Cause.MOVING, "it moves: 5 offsets to go from 40")


def test_moving_without_settling_is_told_as_such() -> None:
    """An owner that sees nothing in the way and settles nothing is worth a second look."""
    found = explain(replace(WELL, still_seconds=600))
    assert (found.cause, found.sentence.endswith("though nothing was settled for 10 min")) == (Cause.MOVING, True)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(replace(WELL, position=LivePosition(45, TOPIC_ID, "host:7", NOW)), id="position at the end"),
        pytest.param(says(State.CAUGHT_UP), id="only control records are left, as the owner saw"),
    ],
)
def test_a_partition_that_is_caught_up_says_so(facts: Facts) -> None:
    """Case 104: nothing to read is no fault."""
    assert explain(facts).cause is Cause.CAUGHT_UP


def test_settled_and_not_made_visible_says_why() -> None:
    """The consumer is well and caught up; readers see nothing of what it does."""
    view = View(visible=31, still_seconds=5.0, trouble="index 'orders': 503", trouble_seconds=600.0)

    found = explain(replace(says(State.CAUGHT_UP), view=view))

    assert found.cause is Cause.NOT_VISIBLE
    assert "settled up to 40, and readers see it up to 31" in found.sentence
    assert "for 10 min: index 'orders': 503" in found.sentence


def test_moved_back_is_told_with_where_it_was() -> None:
    """Who looks at night must not take somebody's rewind for a loss."""
    found = explain(replace(WELL, view=View(visible=31, still_seconds=5.0, rewound_from=90)))

    assert found.cause is Cause.MOVING
    assert "moved back from 90, and readers see it up to 31" in found.sentence


def test_a_gap_names_the_offsets_and_the_three_commands() -> None:
    """Case 63: what retention removed is decided by a person: pause, accept, resume."""
    found = explain(replace(WELL, log=Log(LogRange(43, 45), TOPIC_ID)))
    assert found.cause is Cause.GAP
    assert "offsets 40 to 42" in found.sentence
    assert found.commands == [
        "tidegate pause ledger --reason '…'",
        "tidegate offsets accept-gap ledger orders:3 --reason '…'",
        "tidegate resume ledger",
    ]


def test_a_gap_of_a_paused_job_goes_straight_to_the_gap() -> None:
    """Resuming first would change nothing, and pausing is done."""
    found = explain(replace(WELL, log=Log(LogRange(43, 45), TOPIC_ID), intents=[intent()]))
    assert (found.cause, len(found.commands)) == (Cause.GAP, 1)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(Log(LogRange(0, 45), UUID(int=2**101)), id="another id"),
        pytest.param(Log(LogRange(0, 5), TOPIC_ID), id="the position lies beyond the end"),
    ],
)
def test_a_re_created_topic_is_adopted_by_a_person(log: Log) -> None:
    """Cases 64 and 65: its offsets mean other records."""
    found = explain(replace(WELL, log=log))
    assert found.cause is Cause.RECREATED
    assert "tidegate offsets adopt ledger orders:3 --reason '…'" in found.commands


def test_letters_that_their_topic_does_not_take_are_told_with_what_makes_the_topic() -> None:
    """Case 41: the job rests by itself and goes on by itself; what a person can do is to give it its topic."""
    found = explain(says(State.BACKLOG, "topic 'shop.ledger.dlq' has not taken 10000 dead letters"))
    assert found.cause is Cause.LETTER_BACKLOG
    assert found.sentence.startswith("topic 'shop.ledger.dlq' has not taken 10000 dead letters, for 65 s")
    assert found.commands[-1] == "tidegate topics create"


def test_a_partition_that_has_no_room_to_park_is_told_with_what_makes_room() -> None:
    """It goes on by itself once somebody has dealt with the letters, which is what has to be looked at."""
    found = explain(says(State.PARKING, "offset 5 has to be parked, and 1000 events are parked already"))
    assert found.cause is Cause.PARKING_FULL
    assert found.sentence.startswith("offset 5 has to be parked, and 1000 events are parked already, for 65 s")
    assert found.commands[0].startswith("tidegate dlq list --job ")


def test_what_is_parked_is_told_whatever_else_is_true() -> None:
    """A partition that is caught up has still passed events that nobody has handled."""
    found = explain(replace(WELL, parked=3))
    assert found.sentence.endswith("; 3 events of it are parked behind dead letters of their keys")
    assert found.commands[-1].startswith("tidegate dlq replay --job ")
    assert "parked" not in explain(WELL).sentence


def test_a_missing_topic_is_told_with_what_makes_it() -> None:
    """A release that forgot its topics."""
    found = explain(replace(WELL, log=None))
    assert (found.cause, found.commands) == (Cause.MISSING, ["tidegate topics create"])


@pytest.mark.parametrize(
    "paused, command",
    [
        (intent(until=datetime(2026, 3, 1, 14, tzinfo=UTC)), "tidegate resume ledger"),
        (intent(partition=3), "tidegate resume ledger --partition 3"),
        (intent(topic="orders", partition=3), "tidegate resume ledger --partition orders:3"),
    ],
)
def test_a_pause_is_told_with_who_why_until_and_its_end(paused: Intent, command: str) -> None:
    """Nobody should have to ask around who stopped it."""
    found = explain(replace(WELL, intents=[paused]))
    until = "until 2026-03-01 14:00:00Z" if paused.until else "until somebody resumes it"
    assert found == Explanation(Cause.PAUSED, f"paused by alice {until}: bank is closed", [command])


def test_a_pause_of_another_partition_explains_nothing() -> None:
    """Only what is in this partition's way."""
    found = explain(replace(WELL, intents=[intent(topic="orders", partition=4), intent(topic="other", partition=3)]))
    assert found.cause is Cause.MOVING


def test_a_pause_without_a_worker_says_both() -> None:
    """Resuming alone would not make it move."""
    found = explain(replace(WELL, said=None, intents=[intent()]))
    assert (found.cause, found.sentence.endswith("; besides, nobody owns it")) == (Cause.PAUSED, True)


def test_a_tenants_pause_is_told_where_its_record_comes_next() -> None:
    """The partition waits for one tenant: others behind it want to know whose."""
    acme = intent(tenant="acme & sons")
    found = explain(replace(says(State.PAUSED, f"tenant 'acme & sons' {acme.sentence()}"), intents=[acme]))
    assert found.cause is Cause.TENANT_PAUSED
    assert "offset 40 is of tenant 'acme & sons', paused by alice" in found.sentence
    assert found.commands == ["tidegate resume ledger --tenant 'acme & sons'"]


def test_a_paused_tenant_that_has_not_come_up_is_only_mentioned() -> None:
    """It moves; the pause will be met later, perhaps."""
    found = explain(replace(WELL, intents=[intent(tenant="acme")]))
    assert (found.cause, "'acme'" in found.sentence) == (Cause.MOVING, True)


def test_a_pause_that_has_just_ended_is_over_in_a_moment() -> None:
    """Between resume and the worker's next look the owner still says paused."""
    assert explain(says(State.PAUSED, "paused by alice")).cause is Cause.RESUMING


def test_a_flood_is_told_as_one() -> None:
    """The job stopped itself: that is no pause of an operator's."""
    found = explain(replace(WELL, intents=[intent(IntentKind.FLOOD, topic="orders")]))
    assert (found.cause, found.commands) == (
        Cause.FLOOD,
        ["tidegate flood release ledger --topic orders --until-end"],
    )


def test_a_partition_that_nobody_ever_owned_needs_a_worker() -> None:
    """A new job that was never deployed."""
    found = explain(replace(WELL, position=None, said=None, has_workers=False))
    assert (found.cause, found.commands) == (Cause.NEVER_OWNED, ["tidegate run ledger"])


def test_a_new_partition_of_a_running_job_needs_patience() -> None:
    """Its workers learn of it by themselves; another worker would not help."""
    found = explain(replace(WELL, position=None, said=None))
    assert (found.cause, list(found.commands)) == (Cause.NEVER_OWNED, [])


@pytest.mark.parametrize(
    "facts, told",
    [
        (says(State.RELEASED, seen=90), "host:7 let it go 90 s ago"),
        (says(State.MOVING, seen=UNSEEN_SECONDS + 1), "host:7 has not been seen for 31 s"),
        (replace(WELL, said=None, still_seconds=7200), "host:7 moved it last 2 h ago"),
    ],
)
def test_a_partition_without_an_owner_says_what_became_of_the_last(facts: Facts, told: str) -> None:
    """An orderly stop, a crash and a worker of an older version differ."""
    found = explain(facts)
    assert (found.cause, found.commands) == (Cause.NO_OWNER, ["tidegate run ledger"])
    assert told in found.sentence
    assert "5 offsets wait" in found.sentence


@pytest.mark.parametrize(
    "state, detail, cause",
    [
        (State.TAKING_OVER, "postgres: timed out", Cause.TAKING_OVER),
        (State.OUTAGE, "postgres does not answer", Cause.OUTAGE),
        (State.WAITING, "try 3 failed at offset 40: TimeoutError", Cause.WAITING_FOR_RETRY),
        (State.SLOW, "shop.charge, in a batch from offset 40", Cause.SLOW_HANDLER),
        (State.STALLED, "not fetched from offset 40", Cause.STALLED),
        (State.BLOCKED, "a corrupt batch at offset 40", Cause.BLOCKED),
    ],
)
def test_what_a_living_owner_says_is_passed_on(state: State, detail: str, cause: Cause) -> None:
    """It alone knows which handler runs, which error made it wait, what does not answer."""
    found = explain(says(state, detail))
    assert (found.cause, detail in found.sentence) == (cause, True)
    assert ("65 s" in found.sentence) == (cause is not Cause.BLOCKED)


def test_a_block_is_left_by_the_commands_for_positions() -> None:
    """Reading on is a decision."""
    found = explain(says(State.BLOCKED, "a corrupt batch"))
    assert found.commands == ["tidegate pause ledger --reason '…'", "tidegate offsets show ledger"]


def test_what_kafka_has_is_not_made_up_when_it_cannot_be_asked() -> None:
    """No log is not no topic; and what a worker said may still be the answer."""
    away = replace(WELL, log=None, kafka_trouble="Kafka cannot be asked from here: refused")
    assert explain(away).cause is Cause.KAFKA_UNREACHABLE
    waiting = replace(says(State.WAITING, "try 3"), log=None, kafka_trouble="Kafka cannot be asked from here: refused")
    assert explain(waiting).cause is Cause.WAITING_FOR_RETRY
    assert "refused" in explain(waiting).sentence
