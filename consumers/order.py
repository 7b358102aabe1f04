"""Which events of a job have an order among themselves, and which of a batch have to wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consumers.decoding import Arrival
from dlq.parking import OrderKey, named_key, record_key
from tidegate_kernel.event import Event, Record

OrderKeyOf = Callable[[Event[Any]], str | bytes | None]
"""Pure: the key by which an event has an order; None where it has none."""

_ALL = -1


@dataclass(frozen=True, slots=True)
class Order:
    """Which events of a job have an order among themselves. `of`: the job reads the key from the event."""

    of: OrderKeyOf | None = None

    def key(self, arrival: Arrival) -> OrderKey | None:
        """The key in whose sequence it stands."""
        return record_key(arrival.record) if self.of is None else self._named(self.of, arrival)

    def keys(self, arrival: Arrival) -> Sequence[OrderKey]:
        """All that may block it: of a job with keys of its own also the record's, since what cannot be decoded has
        no other."""
        key = self.key(arrival)
        if key is None:
            return ()
        behind = None if self.of is None else record_key(arrival.record)
        return (key,) if behind is None else (key, behind)

    def _named(self, of: OrderKeyOf, arrival: Arrival) -> OrderKey | None:
        try:
            key = of(arrival.event)
        except Exception:
            # The user's code, and called in a place where nothing may fail for it: the record's own key serves.
            return record_key(arrival.record)
        if key is None:
            return None
        return named_key(arrival.record.topic, key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key)


class Gate:
    """Which events of one batch may be handled, as its transaction sees it. Behind what fails it closes. Use once."""

    def __init__(self, order: Order | None) -> None:
        self._order = order
        self._since: dict[OrderKey, int] = {}
        self.parked_before: Mapping[OrderKey, int] = {}
        self.decided: frozenset[int] = frozenset()
        self.letters: dict[int, OrderKey] = {}
        """The keys that the batch's own dead letters block, by offset."""

    def block(self, blocked: Mapping[OrderKey, int], ahead: Mapping[OrderKey, int]) -> None:
        """All events of the keys wait, so many do already; of those in `ahead` only from that offset on."""
        self.parked_before = blocked
        self._since |= {key: ahead[key] - 1 if key in ahead else _ALL for key in blocked}

    def close_behind(self, record: Record, key: OrderKey | None) -> None:
        """The record failed: later ones of its key wait behind it, unless somebody has decided about its letter."""
        if key is not None and record.offset not in self.decided:
            self._close(key, record.offset)
            self.letters[record.offset] = key

    def fail(self, arrival: Arrival) -> None:
        """As `close_behind`, for an event."""
        if self._order is not None:
            self.close_behind(arrival.record, self._order.key(arrival))

    def admits(self, arrival: Arrival) -> bool:
        """Whether nothing that it has to wait for stands before it.

        Ask for the events of a batch in their order: one that has to wait holds back those behind it.
        """
        if not self._since:
            return True
        offset, keys = arrival.record.offset, self.keys(arrival)
        if all(offset <= self._since.get(key, offset) for key in keys):
            return True
        self._close(keys[0], offset)
        return False

    def admitted(self, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
        """Those that may be handled; all of them, without a look at any, while nothing is in the way."""
        return [arrival for arrival in arrivals if self.admits(arrival)] if self._since else arrivals

    def keys(self, arrival: Arrival) -> Sequence[OrderKey]:
        return () if self._order is None else self._order.keys(arrival)

    def _close(self, key: OrderKey, offset: int) -> None:
        self._since[key] = min(offset, self._since.get(key, offset))

    @property
    def is_closed(self) -> bool:
        """Whether it keeps anything back."""
        return bool(self._since)

    def blocks(self, key: OrderKey) -> bool:
        """Whether some event of the key has to wait."""
        return key in self._since
