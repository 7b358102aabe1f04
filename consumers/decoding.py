"""Records to events, each once, with every failure told apart: one bad record costs only itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from consumers.attributes import LONGEST_TEXT, invalid
from consumers.routes import Route, Unlisted
from consumers.topics import Envelope, Topic, record_time
from tidegate_kernel.errors import InvalidEvent, Misconfigured, Poison, Reason, UnknownType
from tidegate_kernel.event import NO_SCOPE, Event, Record, Scope

# Scopes are shared between events; more tenants and brands than this in one process are made anew now and then.
_SCOPES_KEPT = 10_000
# A type is the producer's text: a batch names at most this many that no route takes, the rest count as "other".
_TYPES_NAMED = 50
_SHOWN = 100


class Arrival(msgspec.Struct, gc=False):
    """A record that became an event, and the route that takes it."""

    record: Record
    event: Event[Any]
    route: Route[Any]


class Undecoded(msgspec.Struct):
    """A record that cannot become an event. `envelope` is what its dead letter may carry, where it could be opened."""

    record: Record
    error: Poison
    envelope: Envelope | None


class Decoded(msgspec.Struct):
    """A batch, sorted by what became of each record; every list in offset order.

    `unlisted` counts the records of types and versions that no route takes, where those are skipped; `unlisted_types`
    tells them apart by type (bounded; the rest under "other"). `discarded` counts those that somebody discarded.
    """

    events: list[Arrival] = msgspec.field(default_factory=list)
    tombstones: list[tuple[Record, Topic]] = msgspec.field(default_factory=list)
    failures: list[Undecoded] = msgspec.field(default_factory=list)
    unlisted: int = 0
    unlisted_types: dict[str, int] = msgspec.field(default_factory=dict)
    discarded: int = 0

    @property
    def passed_by(self) -> int:
        """How many records are neither an event nor a failure, and were meant to be neither."""
        return self.unlisted + self.discarded

    def skip(self, type_: str) -> None:
        self.unlisted += 1
        types = self.unlisted_types
        name = type_[:_SHOWN] if type_[:_SHOWN] in types or len(types) < _TYPES_NAMED else "other"
        types[name] = types.get(name, 0) + 1


class Decoder:
    """Decodes the topics of one job for its routes. Pure: the same records always decode to the same events.

    An event whose envelope has no id gets the id ""; its claim is made from where it stands. Its time is that of the
    envelope, else the record's. A record without a value is only collected. Raises Misconfigured for two routes of one
    type and for models that a topic's format cannot decode.
    """

    def __init__(self, topics: Mapping[str, Topic], routes: Sequence[Route[Any]], unlisted: Unlisted) -> None:
        types = [route.type for route in routes]
        for type_ in types:
            if types.count(type_) > 1:
                raise Misconfigured(f"event type {type_!r} has two routes; a job takes a type once")
        scopes = _Scopes()
        self._topics = {
            name: (topic, topic.envelope.opener(topic.scope), {r.type: _Taker(topic, r, scopes) for r in routes})
            for name, topic in topics.items()
        }
        self._skips = unlisted == "skip"

    def reads(self, topic: str) -> bool:
        """Whether the topic is one of the job's."""
        return topic in self._topics

    def decode(self, records: Sequence[Record]) -> Decoded:
        """Every record is in exactly one of the lists or counted as unlisted; nothing is raised for any bytes."""
        decoded = Decoded()
        arrived, topics = decoded.events.append, self._topics
        for record in records:
            topic, open_envelope, takers = topics[record.topic]
            if record.value is None:
                decoded.tombstones.append((record, topic))
                continue
            envelope = None
            try:
                envelope = open_envelope(record)
                taker = takers.get(envelope.type)
                if taker is None:
                    self._pass_over(decoded, record, envelope)
                else:
                    arrived(Arrival(record, taker.take(record, envelope), taker.route))
            except Poison as error:
                self._fail(decoded, record, envelope, error)
            except (MemoryError, OSError):
                # The machine's trouble, not the record's: it would be wrong to bury the record for it.
                raise
            except Exception as error:
                # Models and upcasts are the user's code and see the payload: what they raise is the record's fault, and
                # the good records around it must not wait. Its text may quote the payload, so only its class is told.
                told = InvalidEvent(f"the model or upcast raised {type(error).__name__}")
                self._fail(decoded, record, envelope, told.with_traceback(error.__traceback__))
        return decoded

    def _pass_over(self, decoded: Decoded, record: Record, envelope: Envelope) -> None:
        if self._skips:
            decoded.skip(envelope.type)
        else:
            error = UnknownType(f"no route takes events of type {envelope.type[:_SHOWN]!r}")
            decoded.failures.append(Undecoded(record, error, _tellable(envelope)))

    def _fail(self, decoded: Decoded, record: Record, envelope: Envelope | None, error: Poison) -> None:
        if self._skips and envelope is not None and isinstance(error, UnknownType):
            decoded.skip(envelope.type)
        else:
            decoded.failures.append(Undecoded(record, error, envelope and _tellable(envelope)))


class _Taker:
    """Makes the events of one type in one topic."""

    def __init__(self, topic: Topic, route: Route[Any], scopes: _Scopes) -> None:
        self.route = route
        self._scopes = scopes
        self._version = route.version
        self._decode = topic.format.decoder(route.model)
        self._read_plain = topic.format.decoder(dict)
        self._convert = topic.format.converter(route.model)

    def take(self, record: Record, envelope: Envelope) -> Event[Any]:
        """Raises a Poison, or what the user's model or upcast raises."""
        identity = envelope.id or ""
        if len(identity) > LONGEST_TEXT or "\0" in identity or "\0" in envelope.source:
            raise invalid(f"the event id is longer than {LONGEST_TEXT} characters, or it or the source holds a NUL")
        if identity.isspace():
            # Taken for an id, it would make one event of all that carry it.
            raise invalid("the event id is blank")
        tenant, brand = envelope.tenant, envelope.brand
        return Event(
            identity,
            envelope.type,
            self._decode(envelope.payload) if envelope.version == self._version else self._lift(envelope),
            record,
            envelope.occurred_at or record_time(record),
            self._version,
            envelope.source,
            self._scopes[tenant, brand] if tenant or brand else NO_SCOPE,
            envelope.correlation_id,
            envelope.traceparent,
            envelope.occurred_at is not None,
        )

    def _lift(self, envelope: Envelope) -> Any:
        """The payload of an older schema version, lifted step by step to the route's."""
        steps = [self.route.upcast.get(version) for version in range(envelope.version, self._version)]
        if not steps or None in steps:
            name = f"{envelope.type[:_SHOWN]!r} version {envelope.version}"
            raise UnknownType(f"no route or upcast takes {name}", reason=Reason.UNKNOWN_VERSION)
        plain = self._read_plain(envelope.payload)
        for step in steps:
            if step is not None:
                plain = step(plain)
        return self._convert(plain)


class _Scopes(dict[tuple[str, str], Scope]):
    """One Scope object per tenant and brand; makes what is not there. Raises Undecodable for what cannot be a name."""

    def __missing__(self, names: tuple[str, str]) -> Scope:
        for name in names:
            if len(name) > LONGEST_TEXT or "\0" in name:
                raise invalid(f"a tenant or brand is longer than {LONGEST_TEXT} characters or holds a NUL")
        if len(self) >= _SCOPES_KEPT:
            self.clear()
        scope = self[names] = Scope(*names)
        return scope


def _tellable(envelope: Envelope) -> Envelope | None:
    """The envelope where all its texts can be stored beside a dead letter."""
    texts = (envelope.id or "", envelope.type, envelope.source, envelope.tenant, envelope.brand)
    return envelope if all(len(text) <= LONGEST_TEXT and "\0" not in text for text in texts) else None
