"""The shop's events, made from the source: what is sent, in which order, under which id."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest

from examples.shop.demo.messages import Kind, event_id, message, order_state
from examples.shop.demo.poison import MARK, POISON, poison
from examples.shop.demo.produce import PARTITIONS, partition_of
from examples.shop.demo.purchases import Purchase, read_purchases
from examples.shop.demo.story import Post, Step, Story

RUN_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def purchases() -> list[Purchase]:
    return read_purchases()


@pytest.fixture(scope="module")
def steps(purchases: list[Purchase]) -> list[Step]:
    return list(Story(purchases).steps)


def _places(steps: list[Step], *, repeats: bool = False) -> dict[tuple[int, str], int]:
    return {
        (step.purchase.line, step.kind): place
        for place, step in enumerate(steps)
        if step.purchase is not None and step.is_repeat is repeats
    }


def test_source_has_the_totals_that_were_counted_without_this_project(purchases: list[Purchase]) -> None:
    """Every later figure rests on these."""
    assert len(purchases) == 69_659
    assert sum(purchase.cents for purchase in purchases) == 250_031_563
    assert sum(purchase.discs for purchase in purchases) == 167_881
    assert len({purchase.customer_id for purchase in purchases}) == 23_570
    assert len({purchase.purchased_on for purchase in purchases}) == 546
    assert sum(purchase.cents == 0 for purchase in purchases) == 80


def test_dollars_become_cents_exactly(purchases: list[Purchase]) -> None:
    """A float on the way would make 11.77 dollars 1176 cents."""
    assert purchases[0] == Purchase(1, "00001", date(1997, 1, 1), 1, 1177)


def test_equal_lines_are_events_of_their_own(purchases: list[Purchase]) -> None:
    """Content is no identity: 255 lines equal another one and are purchases all the same."""
    contents = Counter(purchase[1:] for purchase in purchases)
    repeated = sum(count - 1 for count in contents.values())
    ids = {event_id(Kind.PLACED, purchase, run_at=RUN_AT) for purchase in purchases}
    assert repeated == 255
    assert len(ids) == len(purchases)


def test_each_tenant_has_its_own_habit_of_ids(purchases: list[Purchase]) -> None:
    """The inbox has to serve UUIDv7, other UUIDs and plain text side by side."""
    ids = {p.tenant: event_id(Kind.PLACED, p, run_at=RUN_AT) for p in purchases[:50]}
    day = timedelta(milliseconds=int.from_bytes(UUID(ids["aurora"]).bytes[:6], "big"))
    assert UUID(ids["aurora"]).version == 7
    assert datetime(1970, 1, 1, tzinfo=UTC) + day == RUN_AT
    assert ids["borealis"].startswith("order-")
    assert UUID(ids["cascade"]).version == 5


def test_ids_differ_between_the_events_of_an_order(purchases: list[Purchase]) -> None:
    """An amendment under the id of its order would be dropped as a duplicate."""
    for purchase in purchases[:30]:
        assert len({event_id(kind, purchase, run_at=RUN_AT) for kind in Kind}) == len(Kind)


def test_time_of_an_event_is_that_of_sending(purchases: list[Purchase]) -> None:
    """The purchase date is a field of the business; freshness counts from when the event happened to be sent."""
    sent_at = RUN_AT + timedelta(minutes=5)
    sent = message(Kind.PLACED, purchases[0], sent_at, run_at=RUN_AT)
    assert dict(sent.headers)["ce_time"] == b"2026-03-01T12:05:00+00:00"
    assert sent.timestamp_ms == int(sent_at.timestamp() * 1000)
    assert b'"purchased_on":"1997-01-01"' in (sent.value or b"")


def test_cancellation_is_a_record_without_a_value_that_tells_its_version(purchases: list[Purchase]) -> None:
    """Nothing else in it could say that it is newer than the order."""
    sent = message(Kind.CANCELLED, purchases[96], RUN_AT, run_at=RUN_AT)
    assert (sent.key, sent.value) == (purchases[96].order_id.encode(), None)
    assert dict(sent.headers)["version"] == b"3"


def test_amendment_carries_the_whole_order_and_changes_no_amount(purchases: list[Purchase]) -> None:
    """A projection can then apply it alone, and totals do not depend on it."""
    placed, amended = (order_state(kind, purchases[52]) for kind in (Kind.PLACED, Kind.AMENDED))
    differing = {name for name in placed if placed[name] != amended[name]}
    assert differing == {"version", "gift_wrapped"}


def test_story_tells_all_that_the_rules_say(purchases: list[Purchase], steps: list[Step]) -> None:
    """A trial without cancellations or repeats would prove little."""
    sent = Counter(step.kind for step in steps if not step.is_repeat)
    assert sent[Kind.PLACED] == 69_659
    assert sent[Kind.AMENDED] == 69_659 // 53
    assert sent[Kind.CANCELLED] == 69_659 // 97
    assert sent[Kind.VIEWED] == 69_659 // 50
    assert {kind: sent[kind] for kind in POISON} == dict.fromkeys(POISON, 1)


def test_one_event_in_twenty_is_sent_again_long_after(steps: list[Step]) -> None:
    """A repeat in the same batch would be dropped before the inbox is asked."""
    first, again = _places(steps), _places(steps, repeats=True)
    placed = [place for place in again if place[1] == Kind.PLACED]
    assert len(placed) == 69_659 // 20
    # Behind the last purchase nothing keeps them apart any more.
    assert all(again[line, kind] - first[line, kind] > 1000 for line, kind in again if line < 60_000)


def test_every_second_amendment_comes_before_its_order(steps: list[Step]) -> None:
    """The newest version has to win in whatever order they come."""
    places = _places(steps)
    early = [
        line for line, kind in places if kind == Kind.AMENDED and places[line, Kind.AMENDED] < places[line, Kind.PLACED]
    ]
    assert {line for line in early if line % 97} == set(range(106, 69_660, 106)) - set(range(97, 69_660, 97))


def test_amended_and_cancelled_orders_arrive_backwards(steps: list[Step]) -> None:
    """The late older events must not bring a cancelled order back."""
    places = _places(steps)
    lines = [line for line, kind in places if kind == Kind.CANCELLED and line % 53 == 0]
    assert len(lines) == 69_659 // (53 * 97)
    for line in lines:
        backwards = [places[line, kind] for kind in (Kind.CANCELLED, Kind.AMENDED, Kind.PLACED)]
        assert all(earlier < later for earlier, later in pairwise(backwards))


def test_repeat_carries_the_bytes_of_the_first_time(purchases: list[Purchase]) -> None:
    """Made anew it would have another time, and be another event in all but its id."""
    post = Post(RUN_AT)
    first = post.message(Step(Kind.PLACED, purchases[19]), RUN_AT)
    again = post.message(Step(Kind.PLACED, purchases[19], is_repeat=True), RUN_AT + timedelta(hours=1))
    assert first[:3] == again[:3]
    assert again.sent_at == RUN_AT + timedelta(hours=1)


def test_all_events_of_an_order_lie_in_one_partition(purchases: list[Purchase]) -> None:
    """Order per key is all that Kafka promises."""
    sent = [message(kind, purchases[0], RUN_AT, run_at=RUN_AT) for kind in Kind]
    assert len({partition_of(each.key) for each in sent}) == 1
    assert {partition_of(p.order_id.encode()) for p in purchases[:200]} == set(range(PARTITIONS))


@pytest.mark.parametrize("kind", POISON)
def test_poison_tells_its_kind(kind: str) -> None:
    """The mark travels into the dead letter, where the checker looks for it."""
    assert dict(poison(kind, RUN_AT).headers)[MARK] == kind.encode()
