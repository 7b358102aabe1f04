"""The shop's own rules: pure functions from events to commands, documents and rows."""

from datetime import UTC, date, datetime

import pytest

from consumers.decoding import Decoder
from examples.check_shop.expected import JOBS, POISON, SKIPPED, TYPED_BUT_WRONG
from examples.shop.app import shop
from examples.shop.demo.poison import poison
from examples.shop.ledger.purchases import RecordPurchase, to_purchase
from examples.shop.order_search.documents import MAPPINGS, order_document
from examples.shop.orders import Order, OrderViewed, order_removed
from examples.shop.revenue.rows import COLUMNS, no_revenue, revenue_row
from tests.unit.records import StoredRecord
from tidegate import Delete, Event, Rejected, Scope, Tombstone
from tidegate_kernel.event import Headers

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
AMENDED = Order("aurora-000053", "00003", date(1997, 1, 2), 2, 2076, version=2, gift_wrapped=True)


def _event(order: Order) -> Event[Order]:
    return Event("e1", "order.amended", order, StoredRecord(b""), NOON, scope=Scope("aurora", "vinyl"))


def _cancelled(key: bytes | None = b"aurora-000053", headers: Headers = (("version", b"3"),)) -> Tombstone:
    return Tombstone(StoredRecord(None, key=key, headers=headers), NOON)


def test_purchase_has_what_the_account_needs() -> None:
    """Tenant and brand are the event's scope; the command holds no more than the handler uses."""
    assert to_purchase(_event(AMENDED)) == RecordPurchase("00003", 2076)


def test_document_is_the_whole_order_in_its_scope_at_its_version() -> None:
    """The mapping refuses fields it does not name, and a missing one would not be found by readers."""
    write = order_document(_event(AMENDED))
    assert (write.id, write.version) == ("aurora-000053", 2)
    assert isinstance(write.document, dict)
    assert write.document.keys() == MAPPINGS["properties"].keys()
    assert write.document["tenant"] == "aurora"
    assert write.document["gift_wrapped"] is True


def test_row_fills_every_column() -> None:
    """A column without a value would be its type's zero, silently."""
    write = revenue_row(_event(AMENDED))
    assert (write.id, write.version) == ("aurora-000053", 2)
    assert isinstance(write.document, dict)
    assert write.document.keys() == COLUMNS.keys()
    assert (write.document["day"], write.document["cents"]) == (date(1997, 1, 2), 2076)


def test_view_of_an_order_is_no_revenue() -> None:
    """It is listed, so that it is no unknown type, and has no effect."""
    viewed = Event("e1", "order.viewed", OrderViewed("o1"), StoredRecord(b""), NOON)
    assert no_revenue(viewed) is None  # type: ignore[func-returns-value]  # that is the point


def test_cancelled_order_is_deleted_at_the_version_in_its_header() -> None:
    """Version 3 wins over every earlier state, also over one that arrives later."""
    assert order_removed(_cancelled()) == Delete(id="aurora-000053", version=3)


def test_cancellation_of_nothing_in_particular_is_rejected() -> None:
    """Without a key nobody can say what is deleted."""
    with pytest.raises(Rejected):
        order_removed(_cancelled(key=None))


@pytest.mark.parametrize("headers", [(), [("version", None)], [("version", b"three")]])
def test_cancellation_without_a_version_raises(headers: Headers) -> None:
    """It may be older than what is there; the road makes a dead letter `no_version` of what raises here."""
    with pytest.raises((KeyError, ValueError)):
        order_removed(_cancelled(headers=headers))


def test_prefix_keeps_two_shops_on_the_same_servers_apart() -> None:
    """Every name that stands on a server carries it."""
    one, other = shop("a-"), shop("b-")
    assert one.topics.keys().isdisjoint(other.topics)
    for job in one.jobs:
        twin = other.job(job.code)
        assert one.group(job.job_code) != other.group(twin.job_code)
        assert getattr(job, "sink", None) is None or job.sink.name != twin.sink.name  # type: ignore[union-attr]


@pytest.mark.parametrize("job_code", JOBS)
@pytest.mark.parametrize("kind", POISON)
def test_poison_is_told_at_the_door_or_let_in(job_code: str, kind: str) -> None:
    """What the checker expects of a whole trial holds for decoding alone, where decoding decides it."""
    sent = poison(kind, NOON)
    job = shop().job(job_code)
    outcome = POISON[kind][JOBS.index(job_code)]
    record = StoredRecord(sent.value, key=sent.key, headers=sent.headers)

    decoded = Decoder({topic.name: topic for topic in job.topics}, job.events, job.unlisted).decode([record])

    if sent.value is None:
        assert len(decoded.tombstones) == 1
    elif kind in TYPED_BUT_WRONG:
        assert len(decoded.events) == 1
    elif outcome == SKIPPED:
        assert decoded.unlisted == 1
    else:
        assert [failure.error.reason for failure in decoded.failures] == [outcome]
