"""Looking at dead letters: pages, groups, one letter; and what is in it, for who may see that.

They are looked at in one place, whatever they are of; the tables of records and of items stay apart (ADR 10).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from dlq.corrections import EDITABLE, CorrectionKind
from dlq.envelope import replay_instruction
from dlq.letters import text_for_postgres
from dlq.states import LetterKind, LetterState
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Misconfigured, Reason
from tidegate_kernel.permissions import Action, Actor, Deed
from tidegate_kernel.postgres import Connection, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")

# Such a letter came from something that may still be in the way of its partition.
_LOOK_AT_THE_PARTITION = frozenset({Reason.RETRIES_EXHAUSTED, Reason.WORKER_CRASHED, Reason.CLIENT_PARSE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters: those for which all that is given is true. `since` and `until` are about the last failure.

    `error` is a part of the error's class or message, whatever the case. `key` is the record's, byte for byte; an
    item's, by what it is done once, or its place in its query. An item has no event type.
    """

    jobs: Sequence[str] | None = None
    states: Sequence[LetterState] = (LetterState.DEAD,)
    reason: Reason | None = None
    fingerprint: str | None = None
    event_type: str | None = None
    tenant: str | None = None
    brand: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    key: bytes | None = None


class Cursor(NamedTuple):
    """The last letter of a page. The next page begins after it, whatever has failed meanwhile."""

    failed_at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{self.failed_at.astimezone(UTC).isoformat()}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises Misconfigured."""
        failed_at, _, letter = text.partition("/")
        try:
            at = datetime.fromisoformat(failed_at)
            if at.tzinfo is not None:
                return cls(at, UUID(letter))
        except ValueError:
            pass
        raise Misconfigured(f"--after {text!r} is not where a page ended; take it from the page before, as it is")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLetter:
    """A letter without anything of its payload, its key included.

    An item has no place in Kafka: in its stead `item` says by what it is done once, and `run` in which one it failed.
    """

    kind: LetterKind
    id: UUID
    job: str
    topic: str | None
    partition: int | None
    offset: int | None
    state: str
    reason: str
    error_class: str
    error_message: str
    fingerprint: str
    event_id: str | None
    event_type: str | None
    tenant: str
    brand: str
    handler: str
    attempts: int
    occurrences: int
    replay_count: int
    backfill: bool
    first_failed_at: datetime
    last_failed_at: datetime
    item: str | None = None
    run: int | None = None

    @property
    def place(self) -> str:
        """Where the record stands; of an item, which it is."""
        if self.kind is LetterKind.ITEM:
            return f"{self.item} (run {self.run})"
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def next_command(self) -> str:
        """What to type next, which changes nothing: for a letter that waits for a decision the plan of its replay."""
        return _next_command(self)


def _next_command(letter: ListedLetter) -> str:
    is_item = letter.kind is LetterKind.ITEM
    if is_item and letter.state not in EDITABLE:
        return f"tidegate jobs runs {letter.job}"
    if not is_item and letter.reason in _LOOK_AT_THE_PARTITION and letter.state in EDITABLE:
        return f"tidegate explain {letter.job}:{letter.topic}:{letter.partition}"
    match letter.state:
        case LetterState.DEAD:
            return f"tidegate dlq replay --letter {letter.id}"
        case LetterState.QUARANTINED:
            return f"tidegate dlq replay --letter {letter.id} --force"
        case LetterState.REPLAYING:
            return f"tidegate dlq runs --job {letter.job}"
        case _:
            return f"tidegate find {letter.place} --job {letter.job}"


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Letters, the newest failure first; `after` is where the next page begins, None at the end."""

    letters: Sequence[ListedLetter]
    after: Cursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """Letters of one job that failed in the same way; `sample` is the newest, and the error is the sample's."""

    kind: LetterKind
    job: str
    reason: str
    fingerprint: str
    letters: int
    first_failed_at: datetime
    last_failed_at: datetime
    sample: UUID
    error_class: str
    error_message: str
    handler: str


@dataclass(frozen=True, slots=True)
class LetterStats:
    """The largest groups, and how many groups and letters there are in all."""

    groups: Sequence[LetterGroup]
    all_groups: int = 0
    all_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterDetails(ListedLetter):
    """All that is known of a letter but what it holds: of key and value the sizes, of headers the names.

    `corrected` says what somebody has decided about its record, None if nobody has. `erased_at`, `erased_by`: when and
    by whom all that was in it was removed. `waiting`: how many events are parked behind it.
    """

    topic_id: UUID
    recorded_at: datetime | None
    claimed_bucket: date | None
    claimed_id: UUID | None
    correlation_id: str | None
    traceparent: str | None
    service_version: str
    stack: str
    header_names: Sequence[bytes]
    key_bytes: int | None
    value_bytes: int | None
    value_sha256: str | None
    corrected: str | None
    corrected_by: str | None
    corrected_at: datetime | None
    correction_reason: str | None
    corrected_bytes: int | None
    corrected_sha256: str | None
    erased_at: datetime | None
    erased_by: str | None
    waiting: int

    @property
    def next_command(self) -> str:
        """What an edited letter waits for, else what to type to learn more."""
        if self.corrected == CorrectionKind.EDIT and self.state in EDITABLE:
            return replay_instruction(self.id)
        return _next_command(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDetails(ListedLetter):
    """All that is known of an item's letter. `scheduled_at`: what its run was made for.

    `replay`: the run that is to do it again. `erased_at`, `erased_by`: as of a record's; its key is a digest then.
    """

    scheduled_at: datetime | None
    correlation_id: str | None
    stack: str
    replay: int | None
    erased_at: datetime | None
    erased_by: str | None


class Payload(NamedTuple):
    """The record as it came, a header's name as bytes, too; and the value that it was edited to, if it was."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    corrected: bytes | None = None


async def list_letters(
    connection: Connection, service: str, wanted: LetterFilter, *, after: Cursor | None = None, limit: int = 50
) -> LetterPage:
    """Returns a page of the letters of a service's jobs. Raises Transient."""
    async with _reading(connection, "list dead letters"):
        codes = await _codes(connection, service, wanted.jobs)
        # One more than a page: whether there is a next one.
        rows = await connection.fetch(
            _QUERIES["letters_page"], *_arguments(codes, wanted), *(after or (None, None)), limit + 1
        )
    letters = [ListedLetter(**_named(row, codes)) for row in rows[:limit]]
    return LetterPage(letters, Cursor(letters[-1].last_failed_at, letters[-1].id) if len(rows) > limit else None)


async def letter_stats(connection: Connection, service: str, wanted: LetterFilter, *, limit: int = 50) -> LetterStats:
    """Returns the letters by job, reason and fingerprint. Raises Transient."""
    async with _reading(connection, "count dead letters"):
        codes = await _codes(connection, service, wanted.jobs)
        rows = await connection.fetch(_QUERIES["letter_groups"], *_arguments(codes, wanted), limit)
    if not rows:
        return LetterStats([])
    totals = rows[0]["all_groups"], rows[0]["all_letters"]
    left_out = {"all_groups", "all_letters"}
    return LetterStats([LetterGroup(**_named(row, codes, without=left_out)) for row in rows], *totals)


async def find_letter(connection: Connection, service: str, letter: UUID) -> LetterDetails | ItemDetails:
    """Returns the letter, of a record or of an item. Raises Misconfigured if there is none of that id, Transient."""
    with translated_errors("read a dead letter"):
        codes = await _codes(connection, service, None)
        if (row := await connection.fetchrow(_QUERIES["letter_details"], service, letter)) is not None:
            return LetterDetails(**_named(row, codes))
        if (row := await connection.fetchrow(_QUERIES["item_letter_details"], service, letter)) is not None:
            return ItemDetails(**_named(row, codes))
    raise Misconfigured(f"service {service!r} has no dead letter {letter}; 'tidegate dlq list' shows which it has")


async def read_letter(connection: Connection, service: str, letter: UUID) -> LetterDetails:
    """Returns a record's letter. Raises Misconfigured if the service has none of that id, Transient."""
    found = await find_letter(connection, service, letter)
    if isinstance(found, ItemDetails):
        raise Misconfigured(
            f"dead letter {letter} is an item of job {found.job!r}: it holds no payload, the job's query is asked for "
            f"it; 'tidegate dlq show {letter}' tells all that is known of it"
        )
    return found


async def read_payload(connection: Connection, actor: Actor, letter: ListedLetter) -> Payload:
    """Returns what is in the letter, and the audit says who saw it. Raises Denied, Misconfigured, Transient.

    A letter without a tenant may be anybody's: a token that is limited to tenants does not open it. So for brands.
    """
    deed = Deed(
        Action.DLQ_READ_PAYLOAD,
        f"letter {letter.id}",
        parameters={"job": letter.job, "record": letter.place},
        tenant=letter.tenant or None,
        brand=letter.brand or None,
    )
    async with permitted(connection, actor, deed) as transaction:
        row = await transaction.fetchrow(_QUERIES["letter_payload"], letter.id)
        if row is None:
            raise Misconfigured(f"dead letter {letter.id} is gone by now")
    headers = list(zip(row["header_names"], row["header_values"], strict=True))
    return Payload(row["key"], row["value"], headers, row["corrected"])


@asynccontextmanager
async def _reading(connection: Connection, what: str) -> AsyncIterator[None]:
    with translated_errors(what):
        async with connection.transaction(readonly=True):
            # A generic plan would keep every filter that is not set, and with them walk the whole table.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            yield


async def _codes(connection: Connection, service: str, jobs: Sequence[str] | None) -> Mapping[int, str]:
    rows = await connection.fetch(_QUERIES["jobs_by_code"], service, None if jobs is None else list(jobs))
    return {row["id"]: row["code"] for row in rows}


def _arguments(codes: Mapping[int, str], wanted: LetterFilter) -> list[Any]:
    return [list(codes), [state.value for state in wanted.states], *filter_arguments(wanted)]


def filter_arguments(wanted: LetterFilter) -> list[Any]:
    """What the queries of letters take after jobs and states, in their order."""
    texts = (wanted.fingerprint, wanted.event_type, wanted.tenant, wanted.brand)
    return [
        None if wanted.reason is None else wanted.reason.value,
        *(None if text is None else text_for_postgres(text) for text in texts),
        wanted.since,
        wanted.until,
        None if wanted.error is None else text_for_postgres(wanted.error),
        wanted.key,
    ]


def _named(row: asyncpg.Record, codes: Mapping[int, str], *, without: Container[str] = ()) -> dict[str, Any]:
    told = {name: value for name, value in row.items() if name not in without}
    return told | {"job": codes[row["job"]], "kind": LetterKind(row["kind"])}
