"""The sequences of keys as a run works through them: dead letters and the events parked behind them, in their order."""

from __future__ import annotations

from dlq.sequences.links import (
    Failed,
    Link,
    TakenOut,
    beginnings,
    first_links,
    keys_of,
    limit_silence,
    limit_waiting,
    lock_keys,
    loose_keys,
    put_in_place,
    take_out,
)
from dlq.sequences.records import (
    LetterRecord,
    OpenLetter,
    ParkedRecord,
    bytes_of_events,
    in_order_of_places,
    letter_records,
    letters_of_run,
    lock_letters,
    open_letters,
    parked_records,
)

__all__ = [
    "Failed",
    "LetterRecord",
    "Link",
    "OpenLetter",
    "ParkedRecord",
    "TakenOut",
    "beginnings",
    "bytes_of_events",
    "first_links",
    "in_order_of_places",
    "keys_of",
    "letter_records",
    "letters_of_run",
    "limit_silence",
    "limit_waiting",
    "lock_keys",
    "lock_letters",
    "loose_keys",
    "open_letters",
    "parked_records",
    "put_in_place",
    "take_out",
]
