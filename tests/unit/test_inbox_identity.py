"""From an event to its claim: the same for every delivery, different for different events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox.identity import CONSTANT_BUCKET, ClaimKey, ClaimRule
from tests.unit.records import StoredRecord
from tidegate_kernel.event import Event, Scope
from tidegate_kernel.uuid7 import uuid7

PER_SOURCE = ClaimRule()
GLOBAL = ClaimRule(global_ids=True)
BY_DAY = ClaimRule(bucket_by_event_time=True)
RULES = [ClaimRule(a, b) for a in (False, True) for b in (False, True)]

V4 = "0f1e2d3c-4b5a-4968-8776-655443322110"
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
CENTURY_MS = 36_525 * 86_400_000  # 2000 to 2099


def event(
    id: str,
    *,
    source: str = "/shop",
    tenant: str = "",
    brand: str = "",
    at: datetime = NOON,
    record: StoredRecord | None = None,
) -> Event[None]:
    return Event(id, "noted", None, record or StoredRecord(b""), at, source=source, scope=Scope(tenant, brand))


def spelled(parts: Sequence[str]) -> ClaimKey:
    text, source, tenant, brand = parts
    return PER_SOURCE.key(event(text, source=source, tenant=tenant, brand=brand))


@pytest.mark.parametrize("rule", RULES)
@given(id=st.uuids() | st.text(), at=st.datetimes(timezones=st.just(UTC)))
def test_claim_does_not_depend_on_where_the_record_stood(rule: ClaimRule, id: UUID | str, at: datetime) -> None:
    """G2: a producer's duplicate comes at a new offset, in another partition or topic, with another record time."""
    here = StoredRecord(b"", offset=1, partition=0, topic="shop.orders", timestamp=1)
    there = StoredRecord(b"", offset=99, partition=7, topic="mirror.orders", timestamp=1_700_000_000_000)

    assert rule.key(event(str(id), at=at, record=here)) == rule.key(event(str(id), at=at, record=there))


@given(st.uuids())
def test_uuid_is_taken_as_it_is_in_either_case(id: UUID) -> None:
    """Producers write the same UUID in upper and lower case; both are one event, in every source and scope."""
    lower, upper = event(str(id)), event(str(id).upper(), source="/other", tenant="t", brand="b")

    assert PER_SOURCE.key(lower) == PER_SOURCE.key(upper)
    assert PER_SOURCE.key(lower).id == id


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(V4.replace("-", ""), id="without-hyphens"),
        pytest.param(f"{{{V4}}}", id="braces"),
        pytest.param(f"urn:uuid:{V4}", id="urn"),
        pytest.param(f" {V4}", id="blank-in-front"),
        pytest.param(f"{V4}\n", id="line-end-behind"),
        pytest.param(V4[:-1] + "g", id="not-hexadecimal"),
        pytest.param(V4[:-2] + " 0", id="blank-inside"),
        pytest.param(V4[:-1] + "-", id="fifth-hyphen"),
        pytest.param("0f1e2d3c4b5a4968-8776-6554-4332-2110", id="hyphens-elsewhere"),
        pytest.param(V4[:-1] + "٣", id="arabic-digit"),
    ],
)
def test_other_spellings_of_a_uuid_are_text(text: str) -> None:
    """Only the canonical form is a UUID. Any other is unique within its source, as all text is, and raises nothing."""
    key = PER_SOURCE.key(event(text))

    assert key.id != UUID(V4)
    assert key != PER_SOURCE.key(event(text, source="/other"))


@given(st.integers(min_value=0, max_value=CENTURY_MS - 1))
def test_uuid7_is_claimed_under_its_own_day(milliseconds: int) -> None:
    """The day comes out of the id, so that a late or replayed delivery meets its old claim; the rule has no say."""
    at = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)

    keys = {rule.key(event(str(uuid7(at)))).bucket for rule in RULES}

    assert keys == {at.date()}


@pytest.mark.parametrize("milliseconds", [0, 946_684_799_999, 4_102_444_800_000, (1 << 48) - 1])
def test_uuid7_of_an_absurd_year_gets_no_day_of_its_own(milliseconds: int) -> None:
    """1970, the last moment of 1999, 2100 and the year 10889: a broken clock or a look-alike makes no partition."""
    identity = UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62)

    assert PER_SOURCE.key(event(str(identity))) == ClaimKey(CONSTANT_BUCKET, identity)
    assert BY_DAY.key(event(str(identity))) == ClaimKey(NOON.date(), identity)


def test_ids_without_a_day_share_one_bucket_unless_event_time_holds_still() -> None:
    """A bucket by arrival would forget: only what the event itself fixes may choose it."""
    for text in (V4, "order-17", "17"):
        assert PER_SOURCE.key(event(text)).bucket == CONSTANT_BUCKET
        assert BY_DAY.key(event(text)).bucket == date(2024, 2, 29)


def test_same_text_in_another_source_or_scope_is_another_event() -> None:
    """Ids are unique within a source only: two shops both have an order 1, and both are handled."""
    variants = [
        event("1"),
        event("1", source="/till"),
        event("1", tenant="north"),
        event("1", brand="north"),
        event("1", tenant="north", brand="south"),
        event("1", tenant="south", brand="north"),
    ]

    assert len({PER_SOURCE.key(variant) for variant in variants}) == len(variants)


def test_global_ids_are_one_event_everywhere() -> None:
    """A job that says its ids are global drops the second source's copy."""
    assert GLOBAL.key(event("1")) == GLOBAL.key(event("1", source="/till", tenant="north", brand="south"))


PARTS = st.tuples(st.text(), st.text(), st.text(), st.text())


@given(PARTS, PARTS)
def test_different_parts_never_spell_the_same_claim(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Joined text would let ("ab", "c") swallow ("a", "bc"): a lost event."""
    assert (spelled(one) == spelled(other)) == (one == other)


@given(st.tuples(*[st.text(alphabet="1:", max_size=4)] * 4), st.tuples(*[st.text(alphabet="1:", max_size=4)] * 4))
def test_lengths_in_the_text_confuse_nobody(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """The alphabet of the length prefix itself, where an ambiguity would show first."""
    assert (spelled(one) == spelled(other)) == (one == other)


@pytest.mark.parametrize("id", ["", "0", "18446744073709551616", "\ud83d", "a\x00b", "é", "e\u0301", "x" * 1_000_000])
def test_odd_ids_have_a_claim_of_their_own(id: str) -> None:
    """Empty, a number, a lone surrogate, NUL, two spellings of é, a million letters: 16 bytes each, all different."""
    key = PER_SOURCE.key(event(id))

    assert len(key.id.bytes) == 16
    assert key not in {PER_SOURCE.key(event(other)) for other in ("1", "00", "é\u0301", "x" * 999_999)}


def test_rule_is_spelled_as_it_was_stored() -> None:
    """The text is compared with the row of the job's first start: another spelling would refuse every old job."""
    assert [rule.spell() for rule in RULES] == [
        "v1 ids=per-source bucket=constant",
        "v1 ids=per-source bucket=event-time",
        "v1 ids=global bucket=constant",
        "v1 ids=global bucket=event-time",
    ]


def test_claims_are_the_ones_of_the_first_release() -> None:
    """What was claimed once has to be found again for ever: the hash and the buckets never change."""
    assert PER_SOURCE.key(event("order-17", tenant="north", brand="b")) == ClaimKey(
        CONSTANT_BUCKET, UUID("9877573a-1f4f-bcb5-0218-dd33d4642c26")
    )
    assert GLOBAL.key(event("order-17")) == ClaimKey(CONSTANT_BUCKET, UUID("0dad99a9-f3ef-a613-c298-04f367c96eba"))
