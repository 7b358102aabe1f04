"""Dead letters: every one that must be there, none that must not, byte for byte, in Postgres and in the DLQ topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.chaos.auditor import expected
from tests.chaos.auditor.found import LEDGER, Found
from tests.chaos.auditor.verdict import Verdict, Wrong
from tests.chaos.auditor.written import Logged, Place, Written, spell

_OURS = "tg-dlq-"
_STATE = f"{_OURS}state"
_CLOSED = expected.CLOSED
_STANDING = {"dead", "quarantined"}
_OVER = ("done", "stopped")
Letter = tuple[Logged, str, str]
"""The record as the letter has it, the reason, the letter's id (empty where it does not matter)."""


def judge_letters(verdict: Verdict, written: Written, found: Found) -> None:
    for job in found.jobs:
        wanted = {logged.place: (logged, reason) for logged, reason in expected.dead(written, job)}
        rows = [row for row in found.letters if row["code"] == job]
        stored = [_stored(row) for row in rows]
        outcomes = [record for record in found.letters_published[job] if record.header(_STATE) is not None]
        letters = [record for record in found.letters_published[job] if record.header(_STATE) is None]
        _judge(verdict, f"{job}: dead letter", wanted, stored)
        _judge(verdict, f"{job}: dead letter in the DLQ topic", wanted, [_published(record) for record in letters])
        _judge_outcomes(verdict, job, rows, outcomes)
        verdict.letters.update(f"{row['state']} of {job}" for row in rows)
    _judge_states(verdict, written, found)


def _judge_states(verdict: Verdict, written: Written, found: Found) -> None:
    """No run has a letter any more; what the mended ledger can handle was resolved, and nothing else was."""
    states = found.states(LEDGER)
    mendable = expected.must_be_resolved(written) if found.runs else {}
    unended = [f"run {row['id']} over letters is {row['state']}" for row in found.runs if row["state"] not in _OVER]
    verdict.add(Wrong.UNEXPLAINED, unended)
    left = [spell(place) for place in mendable if place in states and states[place] not in _CLOSED]
    verdict.add(Wrong.LOST, [f"{LEDGER}: the letter of {place} could be handled, and was not" for place in left])
    for row in found.letters:
        place = (row["topic"], row["partition"], row["offset"])
        allowed = _STANDING | ({"discarded"} if row["reason"] == "undecodable" and row["code"] == LEDGER else set())
        if row["code"] == LEDGER and place in mendable:
            allowed = allowed | {expected.RESOLVED}
        if row["state"] not in allowed:
            verdict.add(Wrong.UNEXPLAINED, [f"{row['code']}: the letter of {spell(place)} is {row['state']}"])


def _judge_outcomes(verdict: Verdict, job: str, rows: Sequence[Mapping[str, Any]], outcomes: Sequence[Logged]) -> None:
    """Of every letter that came to its end the DLQ topic tells it, and of no other."""
    ended = {(row["id"], row["state"]) for row in rows if row["state"] in _CLOSED}
    told = {(record.header(f"{_OURS}id"), record.header(_STATE)) for record in outcomes}
    what = f"{job}: outcome in the DLQ topic"
    verdict.add(Wrong.LOST, [f"no {what}: {letter} is {state}" for letter, state in ended - told])
    verdict.add(Wrong.UNEXPLAINED, [f"{what}: {letter} is {state}" for letter, state in told - ended])


def _judge(verdict: Verdict, what: str, wanted: Mapping[Place, tuple[Logged, str]], letters: Iterable[Letter]) -> None:
    ids: dict[Place, set[str]] = {}
    for letter, reason, identity in letters:
        ids.setdefault(letter.place, set()).add(identity)
        if letter.place not in wanted:
            verdict.add(Wrong.UNEXPLAINED, [f"{what} of the sound record {spell(letter.place)}, {reason}"])
            continue
        record, right_reason = wanted[letter.place]
        if letter != record or reason != right_reason:
            verdict.add(Wrong.UNEXPLAINED, [f"{what} of {spell(letter.place)} is {reason}, or not whole"])
    verdict.add(Wrong.LOST, [f"no {what} of {spell(place)}" for place in wanted.keys() - ids.keys()])
    verdict.add(Wrong.DOUBLED, [f"{what} of {spell(p)} has {len(i)} ids" for p, i in ids.items() if len(i) > 1])


def _stored(row: Mapping[str, Any]) -> Letter:
    names = [name.decode() for name in row["header_names"]]
    headers = tuple(zip(names, row["header_values"], strict=True))
    place = (row["topic"], row["partition"], row["offset"])
    return Logged(place, row["key"], row["value"], headers), row["reason"], ""


def _published(record: Logged) -> Letter:
    """As it was before it died: our headers taken off."""
    told = {name: record.header(f"{_OURS}{name}") or "" for name in ("id", "topic", "partition", "offset", "reason")}
    headers = tuple((name, value) for name, value in record.headers if not name.startswith(_OURS))
    place = (told["topic"], int(told["partition"]), int(told["offset"]))
    return Logged(place, record.key, record.value, headers), told["reason"], told["id"]
