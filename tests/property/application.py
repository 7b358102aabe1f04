"""The job under test: its handlers and projection do as the mood of each event says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import asyncpg
import msgspec

from consumers.topics import Tombstone
from projections.memory import MemorySink
from tests.property.schedule import Kind, Mood
from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    Delete,
    Dependency,
    Event,
    FoldJob,
    Json,
    ProjectionJob,
    Rejected,
    RetryLater,
    RetryPolicy,
    Topic,
    Upsert,
    fold,
    handle,
    handle_batch,
    on,
)

CODE = "job"
ORDERS, COPIES = "orders", "copies"
PARTITIONS: Mapping[str, int] = {ORDERS: 2, COPIES: 1}
BATCH_SIZE = 4
DEATHS = 3
"""So many owners may end at a record before it is given up."""
RETRY = RetryPolicy(
    attempts=4,
    crash_attempts=DEATHS,
    unexpected_attempts=3,
    first_delay=timedelta(milliseconds=50),
    longest_delay=timedelta(seconds=1),
)
_HANDLER_TIMEOUT = timedelta(seconds=5)
_SLOW_SECONDS = 1.5
_INSERT = """
INSERT INTO effect (service, event, topic, partition, place) VALUES ($1, $2, $3, $4, $5)
"""


class PaymentsAway(Exception):
    """What a client library raises while the payment service is away."""


class Placed(msgspec.Struct):
    mood: str
    version: int
    text: str = ""


class MendedPlaced(msgspec.Struct):
    """As the mended job reads it: what was invalid is an event."""

    mood: str | int
    version: int


class MendedJson(Json):
    """Reads what could not be decoded before the job was mended."""

    def decoder(self, model: type[Any]) -> Callable[[bytes | msgspec.Raw], Any]:
        decode = super().decoder(model)
        return lambda payload: decode(bytes(payload).lstrip(UNDECODABLE))


@dataclass(frozen=True)
class Place:
    event: str
    mood: Mood
    text: str


class Surroundings(Protocol):
    """What handlers ask of the world they live in."""

    def takes_a_turn(self, event: str) -> bool:
        """Whether an event that misbehaves for a while does so once more."""

    def blame(self, events: Sequence[str], error: BaseException) -> None:
        """A handler failed for these."""

    @property
    def is_payments_away(self) -> bool: ...

    async def payments_answer(self) -> bool: ...


def to_place(event: Event[Placed]) -> Place:
    return Place(event.id, Mood(event.data.mood), event.data.text)


def to_mended_place(event: Event[MendedPlaced]) -> Place:
    """Every event can be handled, as soon as what it needs is there."""
    stays = (Mood.SLOW, Mood.NEEDS_PAYMENTS)
    return Place(event.id, next((mood for mood in stays if mood == event.data.mood), Mood.GOOD), "")


class Handlers:
    """Handlers of one service, in its world."""

    def __init__(self, service: str, world: Surroundings) -> None:
        self._service, self._world = service, world

    async def each(self, command: Place, ctx: Context[None]) -> None:
        await self._handle([command], ctx)

    async def batch(self, commands: Sequence[Place], ctx: Context[None]) -> None:
        await self._handle(commands, ctx)

    async def prepare(self, command: Place, _: None) -> Mood:
        try:
            self._raise_by_mood(command)
        except Exception as error:
            self._world.blame([command.event], error)
            raise
        return command.mood

    async def prepared(self, command: Place, ctx: Context[None], mood: Mood) -> None:
        await self._insert([command], ctx)

    async def _handle(self, commands: Sequence[Place], ctx: Context[None]) -> None:
        # What was written before the failure must not survive it.
        await self._insert(commands, ctx)
        for command in commands:
            try:
                await self._behave(command, ctx)
            except Exception as error:
                self._world.blame([command.event], error)
                raise

    async def _insert(self, commands: Sequence[Place], ctx: Context[None]) -> None:
        rows = [
            (self._service, event.id, event.record.topic, event.record.partition, event.record.offset)
            for event in ctx.events
        ]
        assert [row[1] for row in rows] == [command.event for command in commands]
        try:
            if len(rows) == 1:
                await ctx.db.execute(_INSERT, *rows[0])
            else:
                await ctx.db.executemany(_INSERT, rows)
            for command in commands:
                if command.text:
                    await ctx.db.fetchval("SELECT $1::text", command.text)
        except Exception as error:
            self._world.blame([command.event for command in commands], error)
            raise
        for command in commands:
            ctx.publish(published_topic(self._service), {"event": command.event}, key=command.event, type="placed")

    async def _behave(self, command: Place, ctx: Context[None]) -> None:
        self._raise_by_mood(command)
        match command.mood:
            case Mood.BROKEN_SQL if self._world.takes_a_turn(command.event):
                await ctx.db.execute("SELECT 1 / 0")
            case Mood.SWALLOWED_SQL if self._world.takes_a_turn(command.event):
                self._world.blame([command.event], ValueError())
                with contextlib.suppress(asyncpg.DivisionByZeroError):
                    await ctx.db.execute("SELECT 1 / 0")
            case Mood.HANGING if self._world.takes_a_turn(command.event):
                self._world.blame([command.event], TimeoutError())
                await asyncio.sleep(10 * _HANDLER_TIMEOUT.total_seconds())
            case Mood.SLOW:
                await asyncio.sleep(_SLOW_SECONDS)

    def _raise_by_mood(self, command: Place) -> None:
        match command.mood:
            case Mood.REJECTED:
                raise Rejected("no")
            case Mood.ALWAYS_UNEXPECTED:
                raise ValueError("always")
            case Mood.ALWAYS_TRANSIENT:
                raise RetryLater(after=0.1)
            case Mood.TRANSIENT if self._world.takes_a_turn(command.event):
                raise ConnectionResetError("for a while")
            case Mood.UNEXPECTED if self._world.takes_a_turn(command.event):
                raise ValueError("for a while")
            case Mood.NEEDS_PAYMENTS if self._world.is_payments_away:
                raise PaymentsAway


def document(event: Event[Placed]) -> Upsert | None:
    """Pure: what fails here fails for ever."""
    match Mood(event.data.mood):
        case Mood.REJECTED:
            raise Rejected("no")
        case Mood.ALWAYS_UNEXPECTED:
            raise ValueError("always")
        case Mood.ALWAYS_TRANSIENT:
            return Upsert(REFUSED_ID, event.data.version, {"event": event.id})
    return Upsert(document_id(event.key), event.data.version, {"event": event.id})


def mended_document(event: Event[MendedPlaced]) -> Upsert:
    return Upsert(document_id(event.key), event.data.version, {"event": event.id})


class Log(msgspec.Struct):
    """What was folded into a key: event, topic, partition and offset of each, in order."""

    effects: list[tuple[str, str, int, int]]


def logged(log: Log | None, event: Event[Any]) -> Log:
    record = event.record
    place = (event.id, record.topic, record.partition, record.offset)
    return Log([*(log.effects if log is not None else ()), place])


def note_event(log: Log | None, event: Event[Placed]) -> Log:
    """Pure: what fails here fails for ever."""
    after = logged(log, event)
    match Mood(event.data.mood):
        case Mood.REJECTED:
            raise Rejected("no")
        case Mood.ALWAYS_UNEXPECTED:
            raise ValueError("always")
        case Mood.ALWAYS_TRANSIENT:
            raise RetryLater(after=0.1)
    return after


def note_mended_event(log: Log | None, event: Event[MendedPlaced]) -> Log:
    return logged(log, event)


def log_of(event: Event[Any]) -> str:
    """Two states for all keys, so that partitions meet at them."""
    return f"log {sum(event.key or b'') % 2}"


def log_document(_: str, log: Log) -> dict[str, Any]:
    return {"events": [effect[0] for effect in log.effects]}


def removed(tombstone: Tombstone) -> Delete | None:
    return Delete(document_id(tombstone.key), int(tombstone.headers["version"] or b"0"))


REFUSED_ID = "refused"
UNDECODABLE = b"\xff"
"""What a record that cannot be decoded begins with."""


def document_id(key: bytes | None) -> str:
    return (key or b"none").decode()


def published_topic(service: str) -> str:
    return f"{service}.placed"


def make_app(service: str, kind: Kind, world: Surroundings, sink: MemorySink, *, is_mended: bool = False) -> App:
    """The application with its one job. Topics have the service in their names: a database serves many worlds.

    `is_mended`: as it is after a deployment that can handle all that it could not before.
    """
    topics = [
        Topic(
            topic_name(service, name),
            format=MendedJson() if is_mended else Json(),
            envelope=CloudEvents(),
            tombstone=removed if kind is Kind.PROJECTION else None,
        )
        for name in PARTITIONS
    ]
    common: dict[str, Any] = {
        "code": CODE,
        "topics": topics,
        "unlisted": "skip",
        "runbook": "-",
        "batch_size": BATCH_SIZE,
        "retry": RETRY,
    }
    if kind is Kind.PROJECTION:
        projected = on("placed", MendedPlaced, mended_document) if is_mended else on("placed", Placed, document)
        job = ProjectionJob(events=[projected], sink=sink, freshness_sla=timedelta(seconds=5), **common)
        return App(service=service, owner="tests", jobs=[job])
    if kind is Kind.FOLD:
        folded = fold("placed", MendedPlaced, note_mended_event) if is_mended else fold("placed", Placed, note_event)
        totals = FoldJob(
            events=[folded],
            key=log_of,
            state=Log,
            render=log_document,
            sink=sink,
            freshness_sla=timedelta(seconds=5),
            **common,
        )
        return App(service=service, owner="tests", jobs=[totals])
    taken = on("placed", MendedPlaced, to_mended_place) if is_mended else on("placed", Placed, to_place)
    consumer = ConsumerJob(events=[taken], handler_timeout=_HANDLER_TIMEOUT, needs=["payments"], **common)
    handlers = Handlers(service, world)
    payments = Dependency("payments", probe=world.payments_answer, transient=[PaymentsAway])
    made = {
        Kind.EACH: handle(Place, handlers.each),
        Kind.BATCH: handle_batch(Place, handlers.batch),
        Kind.PREPARED: handle(Place, handlers.prepared, prepare=handlers.prepare),
    }
    return App(service=service, owner="tests", jobs=[consumer], handlers=[made[kind]], dependencies=[payments])


def topic_name(service: str, name: str) -> str:
    return f"{service}.{name}"
