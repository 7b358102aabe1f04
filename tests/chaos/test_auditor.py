"""The auditor names every kind of wrong, finds nothing wrong where nothing is, and owes nothing to what it judges."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.auditor import expected
from tests.chaos.auditor.found import JOBS, LEDGER, SEARCH, Found
from tests.chaos.auditor.judge import judge
from tests.chaos.auditor.verdict import Wrong
from tests.chaos.auditor.written import Logged, Place, Told, Written
from tests.chaos.story import Kind, Story, wire

_BEGAN = datetime(2026, 5, 4, tzinfo=UTC)
_AUDITOR = Path(expected.__file__).parent
_OUR_PACKAGES = {"tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections", "examples"}


@pytest.fixture(scope="module")
def written() -> Written:
    """A story as Kafka has it."""
    records: list[tuple[Logged, Told]] = []
    ends: dict[tuple[str, int], int] = {}
    for told in Story(7, _BEGAN).next(3000):
        at = (told.topic, told.partition)
        place = (*at, ends.get(at, 0))
        ends[at] = place[2] + 1
        fields = (told.number, str(told.kind), told.topic, told.key, told.event_id, told.version, told.cents)
        key, value, headers = wire(told, _BEGAN)
        records.append((Logged(place, key, value, tuple(headers)), Told(*fields)))
    return Written(records, ends, [], len(records))


@pytest.fixture
def found(written: Written) -> Found:
    """What flawless jobs would have made of it."""
    events = expected.events(written)
    order = [told for _, told in written.firsts() if told.event_id in events]
    effects = [{"event_id": t.event_id, "key": t.key, "version": t.version, "cents": t.cents} for t in order]
    documents = {key: state.document for key, state in expected.newest(written).items() if state.document}
    letters = [
        {"code": job, **_letter(logged), "reason": reason, "id": f"{job} {logged.place}", "state": "dead"}
        for job in JOBS
        for logged, reason in expected.dead(written, job)
    ]
    return Found(
        jobs=JOBS,
        effects=effects,
        accounts=_accounts(order),
        claims=[{"code": job, "bucket": day, "id": i} for job in JOBS for day, i in expected.claims(written)],
        positions=[
            {"code": job, "topic": t, "partition": p, "next_offset": end}
            for job in JOBS
            for (t, p), end in written.ends.items()
        ],
        letters=letters,
        parked=[_parked(logged, told) for logged, told in written.firsts() if told.kind == Kind.BEHIND],
        waiting=0,
        documents=documents,
        rows=list(documents.values()),
        published=[_publication(told, number) for number, told in enumerate(order)],
        letters_published={job: [_published(r, why) for r, why in expected.dead(written, job)] for job in JOBS},
    )


def test_the_story_holds_everything_that_can_go_wrong(written: Written) -> None:
    """A run without repeats or removals would prove little."""
    kinds = {told.kind for _, told in written.records}
    states = expected.newest(written).values()

    assert kinds == {str(kind) for kind in Kind}
    assert any(state.document is None for state in states)


def test_flawless_work_is_found_flawless(written: Written, found: Found) -> None:
    """An auditor that always complains is switched off."""
    verdict = judge(written, found)

    assert verdict.first(3) == []
    assert verdict.summary.startswith("lost 0, doubled 0, stale 0")
    assert verdict.events > 2000


def _without_an_effect(found: Found) -> Found:
    return replace(found, effects=found.effects[1:])


def _with_an_effect_twice(found: Found) -> Found:
    return replace(found, effects=[*found.effects, found.effects[0]])


def _with_a_sum_too_large(found: Found) -> Found:
    first = found.accounts[0]
    return replace(found, accounts=[{**first, "events": first["events"] + 1}, *found.accounts[1:]])


def _without_a_claim(found: Found) -> Found:
    return replace(found, claims=found.claims[1:])


def _with_a_strange_claim(found: Found) -> Found:
    return replace(found, claims=[{**found.claims[0], "id": found.claims[0]["id"].int}, *found.claims])


def _with_a_position_behind(found: Found) -> Found:
    first = found.positions[0]
    return replace(found, positions=[{**first, "next_offset": first["next_offset"] - 1}, *found.positions[1:]])


def _with_a_position_beyond(found: Found) -> Found:
    first = found.positions[0]
    return replace(found, positions=[{**first, "next_offset": first["next_offset"] + 1}, *found.positions[1:]])


def _without_a_letter(found: Found) -> Found:
    return replace(found, letters=found.letters[1:])


def _without_a_published_letter(found: Found) -> Found:
    return replace(found, letters_published={**found.letters_published, SEARCH: ()})


def _with_a_bent_letter(found: Found) -> Found:
    return replace(found, letters=[{**found.letters[0], "value": b"bent"}, *found.letters[1:]])


def _with_an_older_document(found: Found) -> Found:
    key, document = next(iter(found.documents.items()))
    return replace(found, documents={**found.documents, key: {**document, "version": 1}})


def _without_a_document(found: Found) -> Found:
    return replace(found, documents=dict(list(found.documents.items())[1:]))


def _with_a_row_twice(found: Found) -> Found:
    return replace(found, rows=[*found.rows, found.rows[0]])


def _with_effects_out_of_order(found: Found) -> Found:
    first = found.effects[0]
    others = [each for each in found.effects if each is not first]
    return replace(found, effects=[*others, first])


def _without_a_publication(found: Found) -> Found:
    return replace(found, published=found.published[1:])


def _with_a_publication_of_another_id(found: Found) -> Found:
    other = replace(found.published[0], headers=(("ce_id", b"another"),))
    return replace(found, published=[*found.published, other])


def _with_a_parked_event_too_few(found: Found) -> Found:
    return replace(found, parked=found.parked[1:])


def _with_a_parked_event_twice(found: Found) -> Found:
    return replace(found, parked=[*found.parked, found.parked[0]])


def _with_a_bent_parked_event(found: Found) -> Found:
    bent = {**found.parked[0], "value": b"{}"}
    return replace(found, parked=[bent, *found.parked[1:]])


def _with_records_still_waiting(found: Found) -> Found:
    return replace(found, waiting=1)


@pytest.mark.parametrize(
    "damage, wrong",
    [
        (_without_an_effect, Wrong.LOST),
        (_with_an_effect_twice, Wrong.DOUBLED),
        (_with_a_sum_too_large, Wrong.DOUBLED),
        (_without_a_claim, Wrong.LOST),
        (_with_a_strange_claim, Wrong.UNEXPLAINED),
        (_with_a_position_behind, Wrong.LOST),
        (_with_a_position_beyond, Wrong.UNEXPLAINED),
        (_without_a_letter, Wrong.LOST),
        (_without_a_published_letter, Wrong.LOST),
        (_with_a_bent_letter, Wrong.UNEXPLAINED),
        (_with_an_older_document, Wrong.STALE),
        (_without_a_document, Wrong.LOST),
        (_with_a_row_twice, Wrong.DOUBLED),
        (_with_effects_out_of_order, Wrong.OUT_OF_ORDER),
        (_without_a_publication, Wrong.LOST),
        (_with_a_publication_of_another_id, Wrong.DOUBLED),
        (_with_a_parked_event_too_few, Wrong.LOST),
        (_with_a_parked_event_twice, Wrong.DOUBLED),
        (_with_a_bent_parked_event, Wrong.UNEXPLAINED),
        (_with_records_still_waiting, Wrong.LOST),
    ],
)
def test_damage_is_named(written: Written, found: Found, damage: Callable[[Found], Found], wrong: Wrong) -> None:
    """An auditor that cannot find a difference proves nothing by finding none."""
    verdict = judge(written, damage(found))

    assert len(verdict.differences[wrong]) >= 1
    assert [kind for kind, sentences in verdict.differences.items() if sentences] == [wrong]


@pytest.fixture
def recovered(written: Written, found: Found) -> Found:
    """What flawless runs over the ledger's letters would have made of that."""
    mendable = expected.must_be_resolved(written)
    letters = [_after_runs(row, is_mendable=_place(row) in mendable) for row in found.letters]
    states = {_place(row): row["state"] for row in letters if row["code"] == LEDGER}
    acted, behind = expected.events(written, states), expected.parked(written, states)
    order = [told for _, told in written.firsts() if told.event_id in acted]
    outcomes = [_outcome(row) for row in letters if row["state"] in ("resolved", "discarded")]
    return replace(
        found,
        effects=[{"event_id": t.event_id, "key": t.key, "version": t.version, "cents": t.cents} for t in order],
        accounts=_accounts(order),
        letters=letters,
        parked=[row for row in found.parked if row["event_id"] in behind],
        published=[_publication(told, number) for number, told in enumerate(order)],
        letters_published={**found.letters_published, LEDGER: [*found.letters_published[LEDGER], *outcomes]},
        runs=[{"id": 1, "state": "done"}, {"id": 2, "state": "stopped"}],
    )


def test_flawless_recovery_is_found_flawless(written: Written, recovered: Found) -> None:
    """Letters that were resolved have acted, discarded ones have not, and what waited behind either has."""
    verdict = judge(written, recovered)

    assert verdict.first(3) == []
    assert set(verdict.letters) >= {"resolved of ledger", "discarded of ledger", "quarantined of ledger"}


def _changed(found: Found, state: str, other: str) -> Found:
    """One letter of the ledger in this state is in the other."""
    place = next(n for n, row in enumerate(found.letters) if row["code"] == LEDGER and row["state"] == state)
    letters = [{**row, "state": other} if n == place else row for n, row in enumerate(found.letters)]
    return replace(found, letters=letters)


def _with_a_letter_left_in_a_run(found: Found) -> Found:
    return _changed(found, "quarantined", "replaying")


def _with_a_run_that_never_ended(found: Found) -> Found:
    return replace(found, runs=[*found.runs, {"id": 3, "state": "running"}])


def _without_the_effect_of_a_resolved_letter(found: Found) -> Found:
    lost = next(row for row in found.effects if row["cents"] < 0)
    return replace(found, effects=[row for row in found.effects if row is not lost])


def _with_the_effect_of_a_resolved_letter_twice(found: Found) -> Found:
    return replace(found, effects=[*found.effects, next(row for row in found.effects if row["cents"] < 0)])


def _without_an_outcome(found: Found) -> Found:
    return replace(found, letters_published={**found.letters_published, LEDGER: found.letters_published[LEDGER][:-1]})


@pytest.mark.parametrize(
    "damage, wrong",
    [
        (_with_a_letter_left_in_a_run, Wrong.UNEXPLAINED),
        (_with_a_run_that_never_ended, Wrong.UNEXPLAINED),
        (_without_the_effect_of_a_resolved_letter, Wrong.LOST),
        (_with_the_effect_of_a_resolved_letter_twice, Wrong.DOUBLED),
        (_without_an_outcome, Wrong.LOST),
    ],
)
def test_damage_by_a_replay_is_named(
    written: Written, recovered: Found, damage: Callable[[Found], Found], wrong: Wrong
) -> None:
    """G8: what a run says became of a letter is held against what its event did."""
    verdict = judge(written, damage(recovered))

    assert len(verdict.differences[wrong]) >= 1
    assert [kind for kind, sentences in verdict.differences.items() if sentences] == [wrong]


def test_letter_that_could_be_handled_and_was_not_is_named(written: Written, recovered: Found) -> None:
    """The last replay of a run takes everything: what is left of it was passed over."""
    verdict = judge(written, _changed(recovered, "resolved", "dead"))

    assert any("could be handled" in sentence for sentence in verdict.differences[Wrong.LOST])


def test_removed_thing_that_came_back_is_named(written: Written, found: Found) -> None:
    """The late older event that brings a deleted document back is the classic."""
    key = next(key for key, state in expected.newest(written).items() if state.document is None)
    back = {"key": key, "version": 1, "cents": 1, "event_id": "x"}

    verdict = judge(written, replace(found, documents={**found.documents, key: back}))

    assert len(verdict.differences[Wrong.RESURRECTED]) == 1


def test_auditor_shares_no_code_with_what_it_judges() -> None:
    """What both sides believe by the same mistake would never be found."""
    imported = set()
    for file in _AUDITOR.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    imported |= {name.name for name in names}
                case ast.ImportFrom(module=str(module)):
                    imported.add(module)

    assert {name for name in imported if name.split(".")[0] in _OUR_PACKAGES} == set()
    ours = {name for name in imported if name.startswith("tests.")}
    assert {name for name in ours if not name.startswith("tests.chaos.auditor")} == set()


def test_same_seed_tells_the_same_story() -> None:
    """A run that failed has to be repeatable."""
    one, other = (Story(3, _BEGAN).next(2000) for _ in range(2))

    assert one == other


def _accounts(events: list[Told]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for told in events:
        account = sums.setdefault(told.key, {"key": told.key, "events": 0, "cents": 0})
        account["events"] += 1
        account["cents"] += told.cents
    return list(sums.values())


def _letter(logged: Logged) -> dict[str, Any]:
    topic, partition, offset = logged.place
    names, values = [name.encode() for name, _ in logged.headers], [value for _, value in logged.headers]
    record = {"key": logged.key, "value": logged.value, "header_names": names, "header_values": values}
    return {"topic": topic, "partition": partition, "offset": offset, **record}


def _place(row: Mapping[str, Any]) -> Place:
    return row["topic"], row["partition"], row["offset"]


def _after_runs(row: Mapping[str, Any], *, is_mendable: bool) -> Mapping[str, Any]:
    """Letters of the ledger that cannot be decoded are discarded, or fail until they are in quarantine, in turn."""
    if row["code"] != LEDGER:
        return row
    if is_mendable:
        return {**row, "state": "resolved"}
    is_discarded = row["reason"] == "undecodable" and row["offset"] % 2
    return {**row, "state": "discarded" if is_discarded else "quarantined"}


def _outcome(row: Mapping[str, Any]) -> Logged:
    told = (("tg-dlq-id", row["id"].encode()), ("tg-dlq-state", row["state"].encode()))
    return Logged((f"chaos.{LEDGER}.dlq", 0, 0), row["key"], None, told)


def _parked(logged: Logged, told: Told) -> dict[str, Any]:
    return {"code": LEDGER, "event_id": told.event_id, **_letter(logged)}


def _published(logged: Logged, reason: str) -> Logged:
    topic, partition, offset = logged.place
    told = {"id": str(logged.place), "topic": topic, "partition": partition, "offset": offset, "reason": reason}
    ours = tuple((f"tg-dlq-{name}", str(value).encode()) for name, value in told.items())
    return replace(logged, place=(f"chaos.{LEDGER}.dlq", 0, 0), headers=(*logged.headers, *ours))


def _publication(told: Told, number: int) -> Logged:
    body = {"cause": told.event_id, "key": told.key, "version": told.version}
    identity = (("ce_id", f"published-{number}".encode()),)
    return Logged(("chaos.recorded", 0, number), told.key.encode(), json.dumps(body).encode(), identity)
