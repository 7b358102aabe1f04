"""The story behind `make demo-dlq`: which orders the bug hits, what waits behind them, and what is said of it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from consumers.decoding import Decoded, Decoder
from examples.check_shop.recovered import Recovered, recovered
from examples.check_shop.servers import FoundRecord, Servers
from examples.shop.demo.messages import Kind, Message
from examples.shop.demo.place import TrialFailed
from examples.shop.demo.purchases import Purchase, read_purchases
from examples.shop.demo.story import Post, Step, Story
from examples.shop.demo_dlq.app import BUGGY, MENDED, shop_of
from examples.shop.demo_dlq.pickup import Pickup, choose, in_time
from examples.shop.demo_dlq.report import Report
from examples.shop.demo_dlq.standing import LEDGER, Account, differences
from tests.unit.records import StoredRecord

RUN_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def purchases() -> list[Purchase]:
    return read_purchases(3000)


@pytest.fixture(scope="module")
def pickup(purchases: list[Purchase]) -> Pickup:
    return choose(purchases)


@pytest.fixture(scope="module")
def steps(purchases: list[Purchase]) -> Sequence[Step]:
    return Story(in_time(purchases), poison=()).steps


def _placed(purchase: Purchase, pickup: Pickup) -> Message:
    return pickup.message(Kind.PLACED, purchase, RUN_AT, run_at=RUN_AT)


def _decoded(job: str, release: str, messages: Sequence[Message]) -> Decoded:
    """What that job of that release makes of the records."""
    declared = shop_of(release).job(job)
    topics = {topic.name: topic for topic in declared.topics}
    records = [
        StoredRecord(sent.value, key=sent.key, headers=tuple(sent.headers), offset=offset)
        for offset, sent in enumerate(messages)
    ]
    return Decoder(topics, declared.events, declared.unlisted).decode(records)


def test_the_bug_hits_300_orders_of_40_customers_and_never_their_last_one(
    purchases: list[Purchase], pickup: Pickup
) -> None:
    """Counted from the source alone: the figures that the whole story is judged by."""
    customer = {purchase.order_id: purchase.customer_id for purchase in purchases}
    last = {purchase.customer_id: purchase.order_id for purchase in in_time(purchases)}

    assert len(pickup.open_orders) == 300
    assert {customer[order] for order in pickup.open_orders} == pickup.customers
    assert len(pickup.customers) == 40
    assert not pickup.open_orders & {last[each] for each in pickup.customers}


def test_all_of_the_source_has_the_same_customers_and_orders(pickup: Pickup) -> None:
    """A small trial is a part of the whole one, not another."""
    assert choose(read_purchases()) == pickup


def test_too_few_orders_for_the_story_are_refused() -> None:
    """A story of 39 customers would prove something else."""
    with pytest.raises(TrialFailed, match="DEMO_ORDERS=3000"):
        choose(read_purchases(500))


def test_no_open_order_is_sent_twice(pickup: Pickup, steps: Sequence[Step]) -> None:
    """A record that cannot be decoded has no id: sent twice it would be two letters, and not 300."""
    sent = Counter(
        step.purchase.order_id for step in steps if step.purchase is not None and step.kind is Kind.PLACED
    )  # fmt: skip
    assert {sent[order] for order in pickup.open_orders} == {1}
    assert set(sent.values()) == {1, 2}


def test_orders_are_sent_by_day(steps: Sequence[Step]) -> None:
    """As the shop took them: the orders of a customer lie between those of others."""
    days = [
        step.purchase.purchased_on
        for step in steps
        if step.purchase is not None and step.kind is Kind.PLACED and not step.is_repeat
    ]
    assert days == sorted(days)


def test_later_orders_are_those_behind_an_open_one_of_their_customer(
    purchases: list[Purchase], pickup: Pickup, steps: Sequence[Step]
) -> None:
    """What has to be parked, found in another way: all but those before the first open order."""
    of_customer: dict[str, list[str]] = defaultdict(list)
    for purchase in in_time(purchases):
        of_customer[purchase.customer_id].append(purchase.order_id)
    expected: set[str] = set()
    for customer in pickup.customers:
        orders = of_customer[customer]
        first = min(orders.index(order) for order in pickup.open_orders & set(orders))
        expected |= set(orders[first:]) - pickup.open_orders

    assert pickup.later_orders(steps) == expected
    assert len(expected) > 300


def test_only_the_ledger_of_the_bad_release_fails_and_only_for_open_orders(
    purchases: list[Purchase], pickup: Pickup
) -> None:
    """The bug is one of decoding, in one job: else there would be other letters, or fewer."""
    orders = [purchase for purchase in purchases if purchase.customer_id in pickup.customers]
    sent = [_placed(purchase, pickup) for purchase in orders]

    bad, mended = _decoded(LEDGER, BUGGY, sent), _decoded(LEDGER, MENDED, sent)

    failed = {orders[each.record.offset].order_id for each in bad.failures}
    assert failed == pickup.open_orders
    assert {str(each.error.reason) for each in bad.failures} == {"invalid_event"}
    assert (len(bad.events), mended.failures) == (len(orders) - 300, [])
    for job in ("order-search", "revenue-by-day"):
        assert _decoded(job, BUGGY, sent).failures == []


def test_records_are_keyed_by_customer_but_for_cancellations(purchases: list[Purchase], pickup: Pickup) -> None:
    """A key is what has an order; a record without a value has no other name for what it cancels."""
    cancelled = next(purchase for purchase in purchases if purchase.is_cancelled)
    assert _placed(cancelled, pickup).key == cancelled.customer_id.encode()
    sent = pickup.message(Kind.CANCELLED, cancelled, RUN_AT, run_at=RUN_AT)
    assert (sent.key, sent.value) == (cancelled.order_id.encode(), None)


def test_a_repeat_of_the_story_carries_the_bytes_of_the_first_time(purchases: list[Purchase], pickup: Pickup) -> None:
    """Also where the record is another than the shop's usual one."""
    repeated = next(p for p in purchases if p.customer_id in pickup.customers and p.line % 20 == 0)
    post = Post(RUN_AT, pickup.message)

    first = post.message(Step(Kind.PLACED, repeated), RUN_AT)
    again = post.message(Step(Kind.PLACED, repeated, is_repeat=True), RUN_AT)

    assert first[:3] == again[:3]
    assert msgspec.json.decode(first.value or b"")["pickup_shop"] == "harbour"


def _accounts(purchases: Sequence[Purchase]) -> dict[Account, tuple[int, int]]:
    found: dict[Account, tuple[int, int]] = {}
    for each in purchases:
        orders, cents = found.get((each.tenant, each.brand, each.customer_id), (0, 0))
        found[each.tenant, each.brand, each.customer_id] = (orders + 1, cents + each.cents)
    return found


def test_accounts_lack_exactly_what_is_left_out(purchases: list[Purchase], pickup: Pickup) -> None:
    """With the bug, and at the kill: an order is on its account, or dead, or parked; never two of these, never none."""
    without = _accounts([purchase for purchase in purchases if purchase.order_id not in pickup.open_orders])
    one = min(pickup.open_orders)

    assert list(differences(without, purchases, without=pickup.open_orders)) == []
    assert len(list(differences(without, purchases, without=pickup.open_orders - {one}))) == 1
    assert len(list(differences(_accounts(purchases), purchases, without={one}))) == 1


def test_a_figure_that_differs_is_a_failure() -> None:
    """The exit code hangs on it."""
    report = Report("abc", 3000)
    report.figure("letters", 300, 300)
    assert (report.as_json()["ok"], report.failures) == (True, [])
    report.figure("letters", 300, 299)
    assert report.as_json()["ok"] is False
    assert report.failures == ["letters: expected 300, found 299"]


class _Stores:
    """Answers the checker: one letter, in the state given, and what the DLQ topic tells of it."""

    def __init__(self, state: str, told: Sequence[str], value: bytes = b'{"order_id":"aurora-000014"}') -> None:
        self._state, self._told, self._value = state, told, value

    async def rows(self, query: str, *_: object) -> list[Mapping[str, Any]]:
        assert "l.state" in query
        return [
            {"topic": "t", "partition": 0, "offset": 7, "key": b"k", "value": self._value, "header_names": [],
             "header_values": [], "reason": "invalid_event", "state": self._state}
        ]  # fmt: skip

    async def records(self, topic: str) -> list[FoundRecord]:
        headers = {"id": b"1", "topic": b"t", "partition": b"0", "offset": b"7", "reason": b"invalid_event"}
        letter = FoundRecord(topic, 0, 0, b"k", self._value, [(f"tg-dlq-{n}", v) for n, v in headers.items()])
        return [letter] + [
            FoundRecord(topic, 0, at, b"k", None, [("tg-dlq-id", b"1"), ("tg-dlq-state", state.encode())])
            for at, state in enumerate(self._told, start=1)
        ]


async def _checked(stores: _Stores) -> Recovered:
    sent = [FoundRecord("t", 0, 7, b"k", b'{"order_id":"aurora-000014"}', ())]
    return await recovered(cast("Servers", stores), sent, job=LEDGER, dlq_topic="dlq")


async def test_checker_counts_what_was_recovered_in_both_places() -> None:
    """A letter that is resolved in Postgres and not on its topic would come back by an import."""
    found = await _checked(_Stores("resolved", ["resolved"]))
    assert (found.resolved, found.told_resolved, found.differences) == (1, 1, [])
    assert (await _checked(_Stores("resolved", []))).told_resolved == 0


async def test_checker_names_the_order_that_is_still_dead() -> None:
    """A number of letters left helps nobody to find them."""
    found = await _checked(_Stores("dead", []))
    assert (found.resolved, found.differences) == (0, [f"{LEDGER}: order aurora-000014 is still dead"])


async def test_checker_tells_a_letter_that_was_bent() -> None:
    """Also a resolved letter is kept as it was, byte for byte."""
    found = await _checked(_Stores("resolved", ["resolved"], value=b'{"order_id":"aurora-000015"}'))
    assert len(found.differences) == 2
    assert all("its value differs" in each for each in found.differences)
