"""What an application declares: its jobs. Nothing here does I/O, and importing a module registers nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from consumers.failure import RetryPolicy
from consumers.flood import FloodLimit
from consumers.folding import FoldKeyOf
from consumers.order import OrderKeyOf
from consumers.parking import ParkingLimit
from consumers.routes import Route, Step, Unlisted
from consumers.subjects import SubjectOf
from consumers.topics import Topic
from inbox.identity import ClaimRule
from projections.folds.rendering import Document
from projections.sink import NO_SINK, SinkDeclaration
from projections.writes import Write
from tidegate.jobs.text import Words
from tidegate_kernel.event import JobCode

StateT = TypeVar("StateT")

Tier = Literal["critical", "standard", "low"]

Projected: TypeAlias = Write | Sequence[Write] | None
"""What a projection function returns for an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Something a handler needs that can be away: `transient` exceptions are its outage, not the event's fault.

    `probe` answers on a fresh connection whether it is there again.
    """

    name: str
    probe: Callable[[], Awaitable[bool]]
    transient: tuple[type[Exception], ...]

    def __init__(
        self, name: str, *, probe: Callable[[], Awaitable[bool]], transient: Sequence[type[Exception]]
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "probe", probe)
        object.__setattr__(self, "transient", tuple(transient))


@dataclass(frozen=True, kw_only=True)
class _TopicJob:
    """What every job on Kafka topics declares. App checks it and raises Misconfigured.

    `code` is stable: group, positions, claims and dead letters hang on it. `unlisted` says what happens to types that
    no `on` takes: "skip" (counted) or "dead_letter". `runbook`, `owner` (by default the App's), `tier` and `purpose`
    are for people; `Text` says the purpose in both languages of `tidegate jobs docs`. `batch_size` is in records: 500,
    for a projection its sink's, unless given. `flood`: how many dead letters stop a topic, for all topics or by name.
    `global_ids`: event ids that are no UUIDs are unique over all sources and scopes. `event_time_is_immutable`: every
    delivery of an event carries the same time, so that its day can hold its claim. `dedupe_horizon`: how long the job
    remembers an event id after it took it; `timedelta.max` is for ever. Unless given it is at least as long as Kafka
    keeps the records; a shorter one is refused at the start of a ConsumerJob without `accept_short_horizon`.
    `subjects`: whose data an event holds, by the name of a field: pure functions, by which
    `tidegate dlq erase --field NAME=VALUE` finds what is kept of a person.
    """

    code: str
    topics: Sequence[Topic]
    unlisted: Unlisted
    runbook: str
    owner: str | None = None
    tier: Tier = "standard"
    purpose: Words | None = None
    batch_size: int | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    flood: FloodLimit | Mapping[str, FloodLimit] = field(default_factory=FloodLimit)
    global_ids: bool = False
    event_time_is_immutable: bool = False
    dedupe_horizon: timedelta | None = None
    accept_short_horizon: bool = False
    subjects: Mapping[str, SubjectOf] = field(default_factory=dict)

    @property
    def job_code(self) -> JobCode:
        return JobCode(self.code)

    def flood_limit(self, topic: str) -> FloodLimit:
        """How many dead letters of `topic` are too many."""
        return self.flood if isinstance(self.flood, FloodLimit) else self.flood.get(topic, FloodLimit())

    @property
    def claim_rule(self) -> ClaimRule:
        """How event ids become claims. Stored at the first start; a change is refused."""
        return ClaimRule(global_ids=self.global_ids, bucket_by_event_time=self.event_time_is_immutable)


@dataclass(frozen=True, kw_only=True)
class ConsumerJob(_TopicJob):
    """Applies events once: each becomes a command whose handler commits together with the event's claim.

    `unlisted` says what happens to types no `on` takes: "skip" (counted) or "dead_letter". `_TopicJob` explains the
    other fields that all jobs have. `order` says what becomes of later events of a key whose event has become a dead
    letter: "park" keeps them behind it, unhandled, until somebody has dealt with it; "skip" lets them pass. The key is
    the record's, unless `order_key` (pure) reads another from the event; events without one have no order. `parking`
    bounds how many wait. `handler_timeout` cuts a handler off; it must stay below `silence_limit`, after
    which Postgres ends the transaction. `needs` names dependencies of the App.
    """

    events: Sequence[Route[Any]]
    order: Literal["park", "skip"] = "park"
    order_key: OrderKeyOf | None = None
    parking: ParkingLimit = field(default_factory=ParkingLimit)
    handler_timeout: timedelta = timedelta(seconds=30)
    silence_limit: timedelta = timedelta(seconds=60)
    needs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ProjectionJob(_TopicJob):
    """Keeps a read model: each event becomes writes that carry their version, so repeats and late ones are harmless.

    `_TopicJob` explains the fields that all jobs have. `order`: the newest version of a document stays, so nothing has
    to wait behind a dead letter. `freshness_sla`: how far readers may be behind, in `freshness_objective` of the time.
    Instead of a `sink` it may have several by name, `sinks`: App makes a job of its own of each, `CODE.NAME`, so that
    one that is away holds up no other. `versions_are_times`: all its versions are times in the same unit, so that a
    record without a value may have its own time as a version (`Topic.tombstone_version=RecordTime()`).
    """

    events: Sequence[Route[Projected]]
    order: Literal["latest-wins"] = "latest-wins"
    sink: SinkDeclaration = NO_SINK
    sinks: Mapping[str, SinkDeclaration] = field(default_factory=dict)
    freshness_sla: timedelta
    versions_are_times: bool = False
    freshness_objective: float = 0.99

    def of_each_sink(self) -> Sequence[ProjectionJob]:
        """The jobs that run: this one, or one for each of its sinks, with progress and dead letters of its own."""
        if not self.sinks:
            return [self]
        return [replace(self, code=f"{self.code}.{name}", sink=sink, sinks={}) for name, sink in self.sinks.items()]


@dataclass(frozen=True, kw_only=True)
class FoldJob(_TopicJob, Generic[StateT]):
    """Keeps a read model of what many events together make: each changes the state of its key, once.

    All functions are pure. `events` are made by `fold`. `key` says whose state an event changes, None: nobody's.
    `state`, a msgspec Struct or pydantic model, is kept in Postgres as JSON; give new fields a default. `render` makes
    of a key and its state the document that goes to the `sink` under the key as its id; a deleted state is a delete.

    Kafka keeps order among records of one key. Where several record keys change one state, their events come in any
    order, and the fold has to make the same of each. `order`, `order_key` and `parking` are as of a ConsumerJob: later
    events of a record key wait behind its dead letter. A state is made of one tenant's events; `across_tenants` says
    why it may be made of several tenants'. `_TopicJob` explains the other fields.
    """

    events: Sequence[Route[Step[StateT]]]
    key: FoldKeyOf
    state: type[StateT]
    render: Callable[[str, StateT], Document]
    sink: SinkDeclaration
    freshness_sla: timedelta
    freshness_objective: float = 0.99
    order: Literal["park", "skip"] = "park"
    order_key: OrderKeyOf | None = None
    parking: ParkingLimit = field(default_factory=ParkingLimit)
    across_tenants: str | None = None


Job: TypeAlias = ConsumerJob | ProjectionJob | FoldJob[Any]

OnceJob: TypeAlias = ConsumerJob | FoldJob[Any]
"""Jobs that act on an event once: its claim decides. What a projection writes may be written again."""

SinkJob: TypeAlias = ProjectionJob | FoldJob[Any]
"""Jobs whose readers ask a sink."""


def acts_once(job: Job) -> bool:
    """Whether a claim decides that an event acts: what other projections write may be written again.

    So it is of a projection whose sink takes stable batches, which something counts.
    """
    return not isinstance(job, ProjectionJob) or bool(getattr(job.sink, "stable_batches", False))


# Projections and folds have no handlers: their transactions hold nothing but statements.
_SILENCE_OF_STATEMENTS = timedelta(seconds=60)


def silence_limit_of(job: Job) -> timedelta:
    """After so long a silence Postgres ends a transaction of the job, and with it its locks."""
    return job.silence_limit if isinstance(job, ConsumerJob) else _SILENCE_OF_STATEMENTS


# Events of a batch handled one by one in a transaction: the knee of the claim statement lies at 500 to 1,000 rows.
_CONSUMER_BATCH = 500


def batch_size_of(job: Job) -> int:
    """How many records a batch holds at most: as declared, else what is efficient for the kind and its sink."""
    return job.batch_size or (job.sink.batch_size if isinstance(job, ProjectionJob) else _CONSUMER_BATCH)
