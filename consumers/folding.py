"""Folds: events change the states of keys, in the transaction that claims them. What the user writes of it is pure.

So a batch's states are locked, read and written once, and everything between is done in memory. An event that fails is
found without savepoints: the batch is folded again, and the failing event leaves its state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from consumers.decoding import Arrival
from consumers.dispatch import HandlerFailed, Prepared
from projections.folds.codec import StateCodec
from projections.folds.states import ChangedState, StoredState, lock_states, write_states
from tidegate_kernel.errors import Poison, Reason
from tidegate_kernel.event import Event, JobId
from tidegate_kernel.postgres import Connection
from tidegate_kernel.source import Outgoing

Made = TypeVar("Made")

FoldKeyOf = Callable[[Event[Any]], str | None]
"""Pure: whose state an event changes; None where it changes none."""

# The longest id that Elasticsearch takes for the document that the key names; a Postgres index takes not much more.
_MOST_KEY_BYTES = 512


@dataclass(frozen=True, slots=True)
class FoldRule:
    """How the events of a job change states. `across_tenants`: one state may hold what several tenants' events say."""

    key: FoldKeyOf
    codec: StateCodec
    across_tenants: bool = False


class _Kept(NamedTuple):
    """A state in memory. `tenant` None: no event has made anything of its key yet."""

    state: Any
    tenant: str | None


class Folding:
    """States of a batch's keys, as they were before it and as its events make them. Use once, in one transaction."""

    def __init__(self, rule: FoldRule, stored: Mapping[str, StoredState]) -> None:
        self._rule, self._stored = rule, stored
        self._kept: dict[str, _Kept] = {}
        self._texts: dict[str, str | None] = {}

    def fold(self, key: str, arrival: Arrival) -> None:
        """The event is in its key's state, in memory. Raises what the user's code raises; the state may be spoilt
        then."""
        self._kept[key] = self._step(self._before(key), arrival)

    def fold_safely(self, key: str, arrival: Arrival) -> None:
        """As `fold`, but an event that raises leaves its state as it was, and one whose state cannot be kept raises."""
        text = self._texts[key] if key in self._texts else self._stored[key].state
        before = _Kept(None if text is None else self._rule.codec.decode(text), self._before(key).tenant)
        after = self._step(before, arrival)
        self._texts[key] = self._text(after)
        self._kept[key] = after

    def changes(self) -> Sequence[ChangedState]:
        """The states that are other ones than before. Raises Poison for one that cannot be kept."""
        made = [ChangedState(key, self._text(kept), kept.tenant or "") for key, kept in self._kept.items()]
        return [change for change in made if change.state != self._stored[change.key].state]

    def _before(self, key: str) -> _Kept:
        if (kept := self._kept.get(key)) is not None:
            return kept
        state, revision, tenant = self._stored[key]
        return _Kept(None if state is None else self._rule.codec.decode(state), tenant if revision else None)

    def _step(self, before: _Kept, arrival: Arrival) -> _Kept:
        tenant = arrival.event.scope.tenant
        if before.tenant not in (None, tenant) and not self._rule.across_tenants:
            raise Poison(
                "the state of its key is made of another tenant's events: put the tenant into the key, or declare "
                "across_tenants with the reason",
                reason=Reason.PROJECTION_FAILED,
            )
        return _Kept(arrival.route.function(arrival.event)(before.state), before.tenant or tenant)

    def _text(self, kept: _Kept) -> str | None:
        return None if kept.state is None else self._rule.codec.encode(kept.state)


class Folder:
    """`Dispatcher` of a fold: what it does is to change the states of keys."""

    takes_groups = True
    prepares = False

    def __init__(self, job: JobId, rule: FoldRule) -> None:
        self._job, self._rule = job, rule

    async def prepare(self, arrival: Arrival) -> Any:  # noqa: ARG002  # part of the interface
        return None

    def handler_name(self, arrival: Arrival) -> str:
        return arrival.route.function_name

    async def dispatch(
        self,
        arrivals: Sequence[Arrival],
        connection: Connection,
        prepared: Prepared,  # noqa: ARG002  # part of the interface
    ) -> Sequence[Outgoing]:
        """In the caller's transaction: the states of the arrivals' keys are changed, and dirty.

        Raises HandlerFailed before anything is written.
        """
        keyed = [(key, arrival) for arrival in arrivals if (key := self.key(arrival)) is not None]
        if keyed:
            folding = await self.begin(connection, (key for key, _ in keyed))
            for key, arrival in keyed:
                blaming(arrival, partial(folding.fold, key, arrival))
            # A state that cannot be kept is some event's fault; whose, is found when they are folded one by one.
            await self.write(connection, blaming(keyed[-1][1], folding.changes))
        return ()

    def key(self, arrival: Arrival) -> str | None:
        """Whose state the event changes. Raises HandlerFailed."""
        return blaming(arrival, partial(self._key, arrival))

    def _key(self, arrival: Arrival) -> str | None:
        key: Any = self._rule.key(arrival.event)
        if key is None:
            return None
        if not isinstance(key, str) or not key or "\0" in key:
            raise Poison("the fold's key is empty, holds a NUL, or is no text", reason=Reason.PROJECTION_FAILED)
        if len(key.encode()) > _MOST_KEY_BYTES:
            raise Poison(f"the fold's key has more than {_MOST_KEY_BYTES} bytes", reason=Reason.TOO_LARGE)
        return str(key)

    async def begin(self, connection: Connection, keys: Iterable[str]) -> Folding:
        """In the caller's transaction: the states of the keys are locked and read."""
        return Folding(self._rule, await lock_states(connection, self._job, set(keys)))

    async def write(self, connection: Connection, changes: Sequence[ChangedState]) -> None:
        """In the transaction that began: the changed states are kept, and dirty."""
        if changes:
            await write_states(connection, self._job, changes)


def blaming(arrival: Arrival, act: Callable[[], Made]) -> Made:
    """Returns what `act` does. Raises HandlerFailed for the event, with a Poison: pure code that raises will raise
    again, so nothing is tried twice."""
    try:
        return act()
    except MemoryError:
        raise  # the machine's trouble, not the event's
    except Exception as error:
        raise HandlerFailed(arrival, _as_poison(error)) from error


def _as_poison(error: Exception) -> Poison:
    if isinstance(error, Poison):
        return error
    return Poison(f"the fold raised {type(error).__name__}", reason=Reason.PROJECTION_FAILED)
