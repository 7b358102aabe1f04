"""Dead letters: every one that must be there, none that must not, byte for byte, in Postgres and in the DLQ topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.chaos.auditor import expected
from tests.chaos.auditor.found import Found
from tests.chaos.auditor.verdict import Verdict, Wrong
from tests.chaos.auditor.written import Logged, Place, Written, spell

_OURS = "tg-dlq-"
Letter = tuple[Logged, str, str]
"""The record as the letter has it, the reason, the letter's id (empty where it does not matter)."""


def judge_letters(verdict: Verdict, written: Written, found: Found) -> None:
    for job in found.jobs:
        wanted = {logged.place: (logged, reason) for logged, reason in expected.dead(written, job)}
        stored = [_stored(row) for row in found.letters if row["code"] == job]
        published = [_published(record) for record in found.letters_published[job]]
        _judge(verdict, f"{job}: dead letter", wanted, stored)
        _judge(verdict, f"{job}: dead letter in the DLQ topic", wanted, published)


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
