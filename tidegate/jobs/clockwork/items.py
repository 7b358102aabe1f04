"""Items of a run as events, so that the application's handlers need not know what called them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from consumers.decoding import Arrival
from consumers.routes import Route
from tidegate.jobs.clockwork.declaration import ClockJob, Occasion, Page
from tidegate.jobs.clockwork.inputs import read_input
from tidegate.jobs.clockwork.maintenance import expired_before
from tidegate.jobs.clockwork.records import ItemRecord, RunTag
from tidegate.jobs.clockwork.runs import ClaimedRun
from tidegate_kernel.errors import InvalidEvent, Misconfigured
from tidegate_kernel.event import Event, JobCode

LONGEST_KEY = 500
"""Characters of an item's key and of what it is done once by: both stand in indexes."""


class Item(NamedTuple):
    """`key`: its place in the query's order; `identity`: by what it is done once in its scope.

    `page_after`: the key behind which its page was asked for, None for the first page. `position`: what the checkpoint
    says once it is settled, where that is not its key.
    """

    key: str
    identity: str
    arrival: Arrival
    page_after: str | None = None
    position: str | None = None


class Items:
    """Makes the pages and items of one run. Raises Misconfigured where its parameters do not fit the job any more."""

    def __init__(self, job: ClockJob, run: ClaimedRun) -> None:
        self._job, self._run = job, run
        told = read_input(job.code, job.input, run.parameters)
        self.occasion = Occasion(JobCode(job.code), run.scope, run.scheduled_at, told, expired_before(job, run))
        self._query: Route[Any] = Route("page", Page, lambda event: job.query(event.data))
        self._command: Route[Any] = Route("item", object, lambda event: job.command(event.data))
        self._count = 0

    def page(self, after: str | None) -> Arrival:
        """What the batch behind the key `after` is asked for with."""
        page = Page(self.occasion, after, self._job.batch_size)
        return self._arrival(page, self._query, key="", identity=f"page {after or ''}")

    def batch(self, answer: object, *, after: str | None) -> Sequence[Item]:
        """The items of a page, in order. Raises Misconfigured where the query does not keep its promise.

        Raises whatever the job's own functions raise.
        """
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            raise Misconfigured(
                f"job {self._job.code!r}: its query answers with {type(answer).__name__}, not with a list"
            )
        items = [self._item(each, after) for each in answer]
        keys = [item.key for item in items]
        if after in keys or len(set(keys)) < len(keys):
            raise Misconfigured(
                f"job {self._job.code!r}: its query answers with a key twice, or with the one it was to begin behind; "
                "it must return each item once, ordered by key, those behind page.after alone"
            )
        return items

    def _item(self, item: Any, after: str | None) -> Item:
        key, identity = self._job.key(item), self._job.item_identity(item, self.occasion)
        for name, text in (("key", key), ("idempotency_key", identity)):
            if not _is_storable(text):
                raise InvalidEvent(
                    f"job {self._job.code!r}: {name} of an item must be a text of 1 to {LONGEST_KEY} characters "
                    f"without NUL, and is {_kind(text)}"
                )
        return Item(key, identity, self._arrival(item, self._command, key=key, identity=identity), after)

    def _arrival(self, content: Any, route: Route[Any], *, key: str, identity: str) -> Arrival:
        run, self._count = self._run, self._count + 1
        scheduled_ms = int(run.scheduled_at.timestamp() * 1000)
        spelled = key.encode("utf-8", "surrogatepass")
        tag = RunTag(run.id, run.token, run.correlation_id)
        record = ItemRecord(self._job.code, run.id, self._count, scheduled_ms, spelled, tag)
        # Ids of what handlers publish derive from this one: it must tell scopes apart.
        scope = f"{quote(run.scope.tenant, safe='')}/{quote(run.scope.brand, safe='')}"
        event: Event[Any] = Event(
            id=f"{scope}/{identity}",
            type=route.type,
            data=content,
            record=record,
            occurred_at=run.scheduled_at,
            source=self._job.code,
            scope=run.scope,
            correlation_id=str(run.correlation_id),
        )
        return Arrival(record=record, event=event, route=route)


def _is_storable(text: object) -> bool:
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_KEY:
        return False
    return "\0" not in text and text.encode("utf-8", "ignore").decode() == text  # no lone surrogate


def _kind(text: object) -> str:
    """What it is, and nothing of what it says."""
    if not isinstance(text, str):
        return type(text).__name__
    return f"a text of {len(text)} characters"


def units_of(items: Sequence[Item], *, is_batch: bool) -> Sequence[Sequence[Item]]:
    """What is done in one transaction each."""
    return [items] if is_batch else [[item] for item in items]
