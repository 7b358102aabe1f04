"""What an application declares of a job by the clock. Nothing here does I/O; what is missing or wrong raises."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal, Self, TypeAlias

from consumers.failure import RetryPolicy
from tidegate.jobs.clockwork.inputs import read_input
from tidegate.jobs.clockwork.schedule import LONGEST, Cron, Every, Schedule
from tidegate.jobs.clockwork.scopes import AcrossScopes, Scopes
from tidegate.jobs.declaration import Tier
from tidegate.jobs.text import Words
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import NO_SCOPE, JobCode, Scope

Unit = Literal["item", "batch"]
PartialFailure = Literal["continue", "stop", "quarantine"]
Progress = Literal["run", "job"]
KeyOrder = Literal["ascending", "of_query"]

_CHOICES = {
    "unit": ("item", "batch"),
    "partial_failure": ("continue", "stop", "quarantine"),
    "checkpoint": ("run", "job"),
    "catch_up": ("latest", "each"),
    "overlap": ("skip", "wait"),
    "tier": ("critical", "standard", "low"),
    "key_order": ("ascending", "of_query"),
}
_FUNCTIONS = ("query", "command", "key", "version")
_AT_LEAST_ONE = ("batch_size", "catch_up_limit", "run_attempts")
_SPANS = ("jitter", "run_retry_delay", "max_duration", "handler_timeout", "history")
# Postgres ends a transaction that is silent for longer than a handler may take; that limit is 24 days at most.
_LONGEST_CALL = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a run was made for. `scheduled_at`: when it was due, the same for its retries.

    `input`: an instance of the job's `input` model; a run by the clock has its defaults. None without one.
    `expired_before`: of a MaintenanceJob with a period, what is older than this has been kept for long enough.
    """

    job: JobCode
    scope: Scope
    scheduled_at: datetime
    input: Any = None
    expired_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A batch that a run wants to have: at most `limit` items of `scope` behind the key `after`, in the keys' order.

    `after` None: from the beginning.
    """

    occasion: Occasion
    after: str | None
    limit: int

    @property
    def scope(self) -> Scope:
        return self.occasion.scope


IdempotencyKeyOf: TypeAlias = Callable[[Any, Occasion], str]


class _Declared:
    """Says which field is missing, and of which job."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        declared = fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        missing = [each.name for each in declared if _is_required(each) and each.name not in given]
        if given and missing:
            raise Misconfigured(f"job {given.get('code', '?')!r}: {missing[0]} is missing; a {cls.__name__} needs it")
        return super().__new__(cls)


def _is_required(each: Field[Any]) -> bool:
    return each.init and each.default is MISSING and each.default_factory is MISSING


@dataclass(frozen=True, kw_only=True)
class ClockJob(_Declared):
    """What every job by the clock declares. Raises Misconfigured, naming job and field.

    `code` is stable: runs, checkpoint and item results hang on it. `trigger`: a Cron or an Every; None: by hand only.
    `scopes`: a run for each, or `AcrossScopes(reason)`.

    A run asks for batches: `query(page)` (pure) makes the query whose handler returns the page's items; each becomes
    the command that `command(item)` (pure) makes, None to pass over it. `key(item)` is the item's place in the order of
    the query: it never changes, and pages are ordered by it. Else items would be left out without a word, as the next
    page begins behind the last key; so a page whose keys go back is refused, and its run fails. `key_order`:
    "ascending", by character, as numbers where all are digits, or by the database's own collation; "of_query" promises
    another order that is as stable, and only a key that comes twice is noticed then.

    `unit`: whether each item or each batch of `batch_size` is a transaction of its own; it also holds the checkpoint,
    the items' results and what their handlers publish.

    `checkpoint`: "run": each occasion begins at the start, and only its retries go on where it broke off; "job": every
    run goes on where the last one ended. `idempotency_key`: by what an item is done once; unless given, once for each
    occasion by its key. `lock_key`: jobs with the same one exclude each other, scope by scope; by default the code.

    `catch_up`: after a downtime "latest" makes one run that tells how many were missed, "each" makes one for each, up
    to the last `catch_up_limit`. `overlap`: what becomes of an occasion while an earlier run of the scope has not
    ended: "skip" records it as skipped, "wait" lets it wait. `jitter`: runs begin up to so much later, each job and
    scope by another delay.

    `retry` is for an item (attempts, pauses between them); `run_attempts` and `run_retry_delay` for a run that failed
    or whose process died. `max_duration` is for each claim of a run: one that a process works on for longer fails, and
    its retry goes on at the checkpoint; a run that was put back, for a stop, a pause or an outage, has all of it again.

    `freshness_sla`: how old the last run of a scope may be that ended well, as of a report or a catalogue;
    `tidegate_run_last_success_timestamp_seconds` and an alert of the chart hold them to it.

    `handler_timeout` cuts a handler off. `needs`: dependencies of the App. `input`: the model (pydantic, msgspec or
    dataclass) of what whoever asks for a run can tell it. `history`: how long ended runs are kept, and what they did;
    with an `idempotency_key` of the job's own, what was done once is never forgotten. `purpose` is for people, as a
    text or a `Text` in both languages of `tidegate jobs docs`.
    """

    code: str
    trigger: Schedule | None
    query: Callable[[Page], Any]
    command: Callable[[Any], Any]
    key: Callable[[Any], str]
    scopes: Scopes
    runbook: str
    partial_failure: PartialFailure
    owner: str | None = None
    tier: Tier = "standard"
    purpose: Words | None = None
    unit: Unit = "item"
    batch_size: int = 100
    checkpoint: Progress = "run"
    idempotency_key: IdempotencyKeyOf | None = None
    lock_key: str | None = None
    catch_up: Literal["latest", "each"] = "latest"
    catch_up_limit: int = 24
    overlap: Literal["skip", "wait"] = "skip"
    jitter: timedelta = timedelta(0)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    run_attempts: int = 3
    run_retry_delay: timedelta = timedelta(minutes=1)
    max_duration: timedelta = timedelta(hours=1)
    handler_timeout: timedelta = timedelta(seconds=30)
    needs: Sequence[str] = ()
    input: type[Any] | None = None
    history: timedelta = timedelta(days=30)
    freshness_sla: timedelta | None = None
    key_order: KeyOrder = "ascending"

    def __post_init__(self) -> None:
        for name in ("code", "runbook"):
            if not getattr(self, name):
                raise self.wrong(name, "is empty")
        if self.purpose is not None and not str(self.purpose).strip():
            raise self.wrong("purpose", "is empty: say what the job is for, or leave it to its kind")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise self.wrong(name, f"must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise self.wrong(name, f"must be at least 1, not {getattr(self, name)}")
        self._check_kinds()
        if self.catch_up == "each" and self.overlap == "skip":
            raise self.wrong(
                "overlap", "must be 'wait' with catch_up='each': of several runs all but one would be skipped"
            )
        self._check_times()
        self._check_scopes()
        if self.trigger is not None:
            read_input(self.code, self.input, {})  # nobody tells the clock's own runs anything

    def _check_kinds(self) -> None:
        """Raises Misconfigured for what a type checker would refuse: without one it would show when the job runs."""
        for name in _FUNCTIONS:
            function = getattr(self, name, str)
            if not callable(function):
                raise self.wrong(name, f"must be a function, not {function!r}")
            if inspect.iscoroutinefunction(function):
                raise self.wrong(name, "is 'async def': it must be a plain function; a handler belongs in App.handlers")
        if self.trigger is not None and not isinstance(self.trigger, Cron | Every):
            raise self.wrong("trigger", f"must be a Cron, an Every or None (by hand only), not {self.trigger!r}")

    def _check_times(self) -> None:
        for name in _SPANS:
            self.check_span(name)
        if self.jitter < timedelta(0):
            raise self.wrong("jitter", f"must not be negative, as {self.jitter}")
        if self.run_retry_delay < timedelta(0):
            raise self.wrong("run_retry_delay", f"must not be negative, as {self.run_retry_delay}")
        if self.history < timedelta(days=1):
            raise self.wrong("history", f"must be at least a day, not {self.history}")
        if not timedelta(0) < self.handler_timeout <= min(self.max_duration, _LONGEST_CALL):
            raise self.wrong(
                "handler_timeout",
                f"({self.handler_timeout}) must be positive, a day at most, and not above max_duration "
                f"({self.max_duration})",
            )
        self._check_sla()

    def check_span(self, name: str) -> None:
        """Raises Misconfigured for what no date can be reckoned with."""
        span = getattr(self, name)
        if not isinstance(span, timedelta):
            raise self.wrong(name, f"must be a timedelta, not {span!r}")
        if span > LONGEST:
            raise self.wrong(name, f"must be {LONGEST.days} days at most, not {span}")

    def _check_sla(self) -> None:
        if self.freshness_sla is None:
            return
        self.check_span("freshness_sla")
        if not timedelta(0) < self.freshness_sla < self.history:
            raise self.wrong(
                "freshness_sla",
                f"({self.freshness_sla}) must be positive, and shorter than history ({self.history}), for which the "
                "last successful run is remembered",
            )
        if self.trigger is None:
            raise self.wrong("freshness_sla", "needs a trigger: of runs by hand alone nobody can say that one is late")

    def _check_scopes(self) -> None:
        if isinstance(self.scopes, AcrossScopes) or callable(self.scopes):
            return
        require_scopes(self, "scopes", self.scopes)
        if not self.scopes or NO_SCOPE in self.scopes:
            raise self.wrong("scopes", "names no tenant; AcrossScopes(reason) says that one run works on all of them")

    def wrong(self, name: str, what: str) -> Misconfigured:
        """An error that names job and field."""
        return Misconfigured(f"job {self.code!r}: {name} {what}")

    @property
    def job_code(self) -> JobCode:
        return JobCode(self.code)

    @property
    def forgets_items(self) -> bool:
        """Whether what was done may be forgotten with its occasion, which nothing asks for any more."""
        return self.idempotency_key is None

    @property
    def results_kept(self) -> timedelta:
        """How long it is remembered that an item was done."""
        return self.history

    @property
    def forgets_failures(self) -> bool:
        """Whether later occasions meet again what failed in one: then that is remembered no longer than results are."""
        return False

    def item_identity(self, item: Any, occasion: Occasion) -> str:
        """By what `item` is done once."""
        if self.idempotency_key is not None:
            return self.idempotency_key(item, occasion)
        return f"{occasion.scheduled_at.isoformat()} {self.key(item)}"


@dataclass(frozen=True, kw_only=True)
class ScheduledJob(ClockJob):
    """Does something to each of many items, by the clock: a nightly reconciliation. `ClockJob` explains the fields."""


def require_scopes(job: ClockJob, name: str, listed: object) -> None:
    """Raises Misconfigured, naming job and field, unless `listed` is a list of scopes."""
    if not isinstance(listed, Collection) or not all(isinstance(each, Scope) for each in listed):
        raise job.wrong(name, f"must be a list of tenants, as [Scope('acme')], not {listed!r}")
