"""An App is checked when it is made: a wrong declaration is one sentence that names the job and the field."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from projections.sink import NO_SINK
from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    Dependency,
    Elasticsearch,
    Event,
    FoldJob,
    Handler,
    Json,
    ParkingLimit,
    ProjectionJob,
    Topic,
    Upsert,
    fold,
    handle,
    handle_batch,
    on,
)
from tidegate.jobs.declaration import Job
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import JobCode


class Noted(msgspec.Struct):
    n: int


@dataclass(frozen=True)
class Note:
    n: int


@dataclass(frozen=True)
class Strike:
    n: int


def to_note(event: Event[Noted]) -> Note:
    return Note(event.data.n)


def to_note_or_strike(event: Event[Noted]) -> Note | Strike | None:
    return Note(event.data.n) if event.data.n else None


async def note(command: Note, ctx: Context[None]) -> None:
    return None


async def note_all(commands: Any, ctx: Context[None]) -> None:
    return None


def document(event: Event[Noted]) -> Upsert:
    return Upsert(id=event.id, version=1, document={})


async def probe() -> bool:
    return True


ORDERS = Topic("shop.orders", format=Json(), envelope=CloudEvents())
SINK = Elasticsearch(index="notes", mappings={"properties": {}})
COMPACTED = Topic("shop.customers", format=Json(), envelope=CloudEvents(), compacted=True)


def consumer(**changed: Any) -> ConsumerJob:
    told: dict[str, Any] = {
        "code": "notes",
        "topics": [ORDERS],
        "unlisted": "skip",
        "runbook": "docs/runbooks/notes.md",
        "events": [on("noted", Noted, to_note)],
    }
    return ConsumerJob(**{**told, **changed})


def projection(**changed: Any) -> ProjectionJob:
    told: dict[str, Any] = {
        "code": "search",
        "topics": [ORDERS],
        "unlisted": "skip",
        "runbook": "docs/runbooks/search.md",
        "events": [on("noted", Noted, document)],
        "sink": SINK,
        "freshness_sla": timedelta(seconds=5),
    }
    return ProjectionJob(**{**told, **changed})


class Total(msgspec.Struct):
    n: int


def add(state: Total | None, event: Event[Noted]) -> Total:
    return Total((state.n if state else 0) + event.data.n)


def folding(**changed: Any) -> FoldJob[Total]:
    told: dict[str, Any] = {
        "code": "totals",
        "topics": [ORDERS],
        "unlisted": "skip",
        "runbook": "docs/runbooks/totals.md",
        "events": [fold("noted", Noted, add)],
        "key": lambda _: "all",
        "state": Total,
        "render": lambda key, state: {"key": key, "n": state.n},
        "sink": SINK,
        "freshness_sla": timedelta(seconds=5),
    }
    return FoldJob(**{**told, **changed})


def app(*jobs: Job, **changed: Any) -> App:
    told: dict[str, Any] = {"service": "shop", "owner": "team", "jobs": jobs, "handlers": [handle(Note, note)]}
    return App(**{**told, **changed})


@pytest.mark.parametrize(
    "job, sentence",
    [
        (consumer(order="latest-wins"), "job 'notes': order must be 'park' or 'skip', not 'latest-wins'"),
        (consumer(order="skip", order_key=lambda _: "k"), "order_key has no meaning with order=.skip."),
        (projection(order="park"), "job 'search': order must be 'latest-wins', not 'park'"),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused(job: ConsumerJob | ProjectionJob, sentence: str) -> None:
    """A promise about order that the kind of job cannot keep must not be found out by a customer."""
    with pytest.raises(Misconfigured, match=sentence):
        app(job)


@pytest.mark.parametrize("limits", [{"per_key": 0}, {"per_job": 0}])
def test_parking_needs_room(limits: dict[str, int]) -> None:
    """With none, the first failure would stop its partition for ever."""
    with pytest.raises(Misconfigured, match="at least 1"):
        ParkingLimit(**limits)


def test_complete_declaration_is_taken() -> None:
    """The builders of this module are right, so that each refusal below has exactly one cause."""
    declared = app(consumer(), projection())

    assert declared.job("notes").code == "notes"
    assert set(declared.topics) == {"shop.orders"}
    assert declared.group(JobCode("notes")) == "shop.notes"
    assert declared.dlq_topic(JobCode("notes")) == "shop.notes.dlq"


REFUSED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "service": (lambda: app(consumer(), service="My Shop"), ["App.service", "'My Shop'"]),
    "empty service": (lambda: app(consumer(), service=""), ["App.service"]),
    "app owner": (lambda: app(consumer(), owner=""), ["App.owner"]),
    "job twice": (lambda: app(consumer(), consumer()), ["job code 'notes'", "twice"]),
    "handler twice": (lambda: app(consumer(), handlers=[handle(Note, note)] * 2), ["handler", "Note", "twice"]),
    "dependency twice": (
        lambda: app(consumer(), dependencies=[Dependency("mail", probe=probe, transient=[])] * 2),
        ["dependency 'mail'", "twice"],
    ),
    "code": (lambda: app(consumer(code="My Notes")), ["job 'My Notes'", "code"]),
    "code too long": (lambda: app(consumer(code="n" * 101)), ["job", "code", "100"]),
    "topics": (lambda: app(consumer(topics=[])), ["job 'notes'", "topics"]),
    "topic twice": (lambda: app(consumer(topics=[ORDERS, ORDERS])), ["job 'notes'", "topic 'shop.orders'", "twice"]),
    "events": (lambda: app(consumer(events=[])), ["job 'notes'", "events"]),
    "runbook": (lambda: app(consumer(runbook="")), ["job 'notes'", "runbook"]),
    "unlisted": (lambda: app(consumer(unlisted="ignore")), ["job 'notes'", "unlisted", "'dead_letter'", "'ignore'"]),
    "event twice": (
        lambda: app(consumer(events=[on("noted", Noted, to_note)] * 2)),
        ["job 'notes'", "event type 'noted'", "twice"],
    ),
    "batch size": (lambda: app(consumer(batch_size=0)), ["job 'notes'", "batch_size"]),
    "handler time-out": (
        lambda: app(consumer(handler_timeout=timedelta(seconds=60))),
        ["job 'notes'", "handler_timeout", "silence_limit"],
    ),
    "no time for handlers": (
        lambda: app(consumer(handler_timeout=timedelta(0))),
        ["job 'notes'", "handler_timeout"],
    ),
    "needs": (lambda: app(consumer(needs=["mail"])), ["job 'notes'", "needs", "'mail'", "App.dependencies"]),
    "no handler": (lambda: app(consumer(), handlers=[]), ["job 'notes'", "'noted'", "Note", "App.handlers"]),
    "no handler for one of two": (
        lambda: app(consumer(events=[on("noted", Noted, to_note_or_strike)])),
        ["job 'notes'", "'noted'", "Strike", "App.handlers"],
    ),
    "freshness": (lambda: app(projection(freshness_sla=timedelta(0))), ["job 'search'", "freshness_sla"]),
    "no sink": (lambda: app(projection(sink=NO_SINK)), ["job 'search'", "sink or sinks"]),
    "sink and sinks": (lambda: app(projection(sinks={"a": SINK})), ["job 'search'", "either sink or sinks"]),
    "sink's name": (lambda: app(projection(sink=NO_SINK, sinks={"A b": SINK})), ["job 'search'", "sinks", "'A b'"]),
    "state": (lambda: app(folding(state=int)), ["job 'totals'", "state", "msgspec Struct"]),
    "fold's order": (lambda: app(folding(order="latest-wins")), ["job 'totals'", "order", "'park'"]),
    "fold's freshness": (lambda: app(folding(freshness_sla=timedelta(0))), ["job 'totals'", "freshness_sla"]),
    "across tenants": (lambda: app(folding(across_tenants=" ")), ["job 'totals'", "across_tenants", "why"]),
    "compacted": (lambda: app(projection(topics=[COMPACTED])), ["job 'search'", "'shop.customers'", "tombstone"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusal_names_the_job_and_the_field(what: str) -> None:
    """Somebody else's job may be wrong, in a list of forty: the sentence says which, what, and what to do."""
    declare, named = REFUSED[what]

    with pytest.raises(Misconfigured) as caught:
        declare()

    message = str(caught.value)
    assert [text for text in named if text not in message] == []
    assert "\n" not in message


def test_each_of_several_sinks_has_a_job_of_its_own() -> None:
    """Own group, positions, claims and letters: one that is away holds up no other."""
    declared = app(projection(code="orders", sink=NO_SINK, sinks={"search": SINK, "analytics": SINK}), consumer())

    assert [job.code for job in declared.jobs] == ["orders.search", "orders.analytics", "notes"]
    assert declared.group(JobCode("orders.search")) == "shop.orders.search"
    assert declared.dlq_topic(JobCode("orders.analytics")) == "shop.orders.analytics.dlq"


def test_the_code_of_several_sinks_is_answered_with_their_names() -> None:
    """Whoever pauses or replays "orders" is asked which: acting on all of them is seldom what is meant."""
    declared = app(projection(code="orders", sink=NO_SINK, sinks={"search": SINK, "analytics": SINK}))

    with pytest.raises(Misconfigured, match=r"name orders\.search or orders\.analytics"):
        declared.job("orders")


def test_codes_of_sinks_meet_no_others() -> None:
    """A job that happens to be called as a sink's job would share its group and positions."""
    with pytest.raises(Misconfigured, match=r"job code 'orders\.search' is declared twice"):
        app(projection(code="orders", sink=NO_SINK, sinks={"search": SINK}), consumer(code="orders.search"))


def test_a_fold_is_taken() -> None:
    """The builder is right, so that each refusal above has exactly one cause."""
    assert app(folding()).job("totals").code == "totals"


def test_unknown_job_is_answered_with_those_there_are() -> None:
    """A misspelt code on the command line costs one more try, not a look into the code."""
    with pytest.raises(Misconfigured, match=r"'shop' has no job 'nots'; its jobs: notes, search"):
        app(projection(), consumer()).job("nots")


def test_commands_of_one_name_from_two_modules_have_a_handler_each() -> None:
    """Two parts of a service may both call a command Note; what counts is the class."""

    @dataclass(frozen=True)
    class Note:
        n: int

    async def other_note(command: Note, ctx: Context[None]) -> None:
        return None

    declared = app(consumer(), handlers=[handle(globals()["Note"], note), handle(Note, other_note)])

    assert len(declared.commands) == 2


def plain(command: Note, ctx: Context[None]) -> None:
    return None


untyped: Any = plain
untyped_note: Any = note
"""What a service without a type checker might pass."""


class Notary:
    async def __call__(self, command: Note, ctx: Context[None]) -> None:
        return None


@pytest.mark.parametrize("declare", [handle, handle_batch])
def test_plain_function_is_refused_with_the_remedy(declare: Callable[..., Handler]) -> None:
    """A synchronous handler would stop every partition of the process while it waits."""
    with pytest.raises(Misconfigured, match=r"'plain' is a plain function.*async def.*ctx\.thread"):
        declare(Note, plain)


def test_plain_prepare_is_refused_too() -> None:
    """It runs outside the transaction, but on the same event loop."""
    with pytest.raises(Misconfigured, match="plain function"):
        handle(Note, untyped_note, prepare=untyped)


def test_every_kind_of_asynchronous_callable_is_a_handler() -> None:
    """Partials and objects with an async call are how handlers get their collaborators."""
    made = [
        handle(Note, note),
        handle(Note, functools.partial(note)),
        handle(Note, Notary()),
        handle_batch(Note, note_all),
    ]

    assert [bool(handler.name) for handler in made] == [True] * 4


def test_function_without_an_annotation_is_taken_on_trust() -> None:
    """Nothing can be checked of what says nothing; the type checker has its own word about it."""

    def untold(event):  # type: ignore[no-untyped-def]  # the point of this test
        return Strike(1)

    assert len(app(consumer(events=[on("noted", Noted, untold)])).jobs) == 1
