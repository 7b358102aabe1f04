"""An event id that somebody types is looked for under the very ids that the job claims."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from consumers.unread import UnreadRecord
from tidegate import CloudEvents, ConsumerJob, DebeziumOutbox, Event, Json, PlainJson, ScopeFields, Topic, on
from tidegate.console.claim_ids import EventSought, claim_ids
from tidegate_kernel.event import Scope

SCOPED = Topic("orders", format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid", brand="brandid"))
PLAIN = Topic("plain", format=Json(), envelope=PlainJson(source="erp"))
OUTBOX = Topic("outbox", format=Json(), envelope=DebeziumOutbox(source="shop"))
V4 = "3b241101-e2bb-4255-8caf-4136c566a962"


def job(*topics: Topic, **declared: Any) -> ConsumerJob:
    events = [on("noted", dict, lambda event: event)]
    return ConsumerJob(code="notes", topics=topics, unlisted="skip", runbook="-", events=events, **declared)


def claimed(of: ConsumerJob, event_id: str, source: str = "", tenant: str = "", brand: str = "") -> UUID:
    """The id that the job takes in the inbox when the event arrives."""
    when = datetime(2026, 3, 1, tzinfo=UTC)
    event = Event[Any](event_id, "noted", {}, UnreadRecord("t", 0, 0), when, source=source, scope=Scope(tenant, brand))
    return of.claim_rule.key(event).id


def test_uuid_needs_nothing_else() -> None:
    """A UUID is unique by itself, so it is claimed as it is."""
    assert claim_ids(job(SCOPED), EventSought(V4)) == (frozenset({UUID(V4)}), None)


def test_text_id_is_found_with_source_and_scope() -> None:
    """The claim's hash takes them in: a wrong or missing one finds nothing."""
    notes = job(SCOPED)

    found = claim_ids(notes, EventSought("e1", "web", "acme", ""))

    assert found == (frozenset({claimed(notes, "e1", "web", "acme", "")}), None)


@pytest.mark.parametrize(
    "known, options",
    [
        ({}, "--source and --tenant and --brand"),
        ({"source": "web"}, "--tenant and --brand"),
        ({"source": "web", "tenant": "acme"}, "--brand"),
        ({"tenant": "", "brand": ""}, "--source"),
    ],
)
def test_what_is_missing_is_named(known: dict[str, str], options: str) -> None:
    """'Not found' would be a lie where the question was only incomplete."""
    ids, lacking = claim_ids(job(SCOPED), EventSought("e1", **known))

    assert ids == frozenset()
    assert f"found with {options} (" in (lacking or "")


def test_topic_that_tells_its_source_needs_none() -> None:
    """A constant of the declaration is known without asking; two topics may have two."""
    notes = job(PLAIN, OUTBOX)

    found = claim_ids(notes, EventSought("e1"))

    assert found == (frozenset({claimed(notes, "e1", "erp"), claimed(notes, "e1", "shop")}), None)


def test_topics_that_suffice_are_searched_while_others_lack_something() -> None:
    """Half an answer is one, as long as it says so."""
    notes = job(PLAIN, SCOPED)

    ids, lacking = claim_ids(notes, EventSought("e1"))

    assert ids == frozenset({claimed(notes, "e1", "erp")})
    assert lacking is not None


def test_global_ids_need_no_scope() -> None:
    """The job declared that its ids are unique over all sources and scopes."""
    notes = job(SCOPED, global_ids=True)

    assert claim_ids(notes, EventSought("e1")) == (frozenset({claimed(notes, "e1")}), None)
