"""Compares what was found with what must be there. Pure: no server is asked here."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.auditor import expected
from tests.chaos.auditor.found import LEDGER, REPORT, SEARCH, Found
from tests.chaos.auditor.letters import judge_letters
from tests.chaos.auditor.verdict import Verdict, Wrong
from tests.chaos.auditor.written import Logged, Told, Written


def judge(written: Written, found: Found) -> Verdict:
    """Every offset, effect, account, claim, document, row, publication and dead letter."""
    events = expected.events(written, found.states(LEDGER))
    verdict = Verdict(events=len(events), records=len(written.records))
    verdict.add(Wrong.UNEXPLAINED, written.problems)
    _judge_positions(verdict, written, found)
    _judge_effects(verdict, written, found)
    _judge_parked(verdict, written, found)
    _judge_accounts(verdict, written, found)
    _judge_claims(verdict, written, found)
    if SEARCH in found.jobs:
        _judge_documents(verdict, SEARCH, expected.newest(written), found.documents)
        _judge_documents(verdict, REPORT, expected.newest(written), dict(_plain_rows(verdict, found.rows)))
    _judge_published(verdict, written, found)
    judge_letters(verdict, written, found)
    return verdict


def _judge_positions(verdict: Verdict, written: Written, found: Found) -> None:
    positions = {(row["code"], row["topic"], row["partition"]): row["next_offset"] for row in found.positions}
    for job in found.jobs:
        for (topic, partition), end in written.ends.items():
            settled = positions.pop((job, topic, partition), 0)
            sentence = f"{job} {topic}:{partition} is settled up to {settled}, its log ends at {end}"
            if settled != end:
                verdict.add(Wrong.LOST if settled < end else Wrong.UNEXPLAINED, [sentence])
    verdict.add(Wrong.UNEXPLAINED, [f"a position of {job} in {t}:{p}" for job, t, p in positions])
    if found.waiting:
        verdict.add(Wrong.LOST, [f"{found.waiting} records still wait in the outbox"])


def _judge_effects(verdict: Verdict, written: Written, found: Found) -> None:
    states = found.states(LEDGER)
    events, behind = expected.events(written, states), expected.parked(written, states)
    counts = Counter(row["event_id"] for row in found.effects)
    passed = [f"ledger: {_name(told)} passed the dead letter of its key" for i, told in behind.items() if counts[i]]
    verdict.add(Wrong.OUT_OF_ORDER, passed)
    verdict.add(Wrong.LOST, [f"ledger: no effect of {_name(t)}" for i, t in events.items() if not counts[i]])
    verdict.add(
        Wrong.DOUBLED, [f"ledger: {counts[i]} effects of {_name(t)}" for i, t in events.items() if counts[i] > 1]
    )
    for row in found.effects:
        told = events.get(row["event_id"]) or behind.get(row["event_id"])
        if told is None or (told.key, told.version, told.cents) != (row["key"], row["version"], row["cents"]):
            verdict.add(Wrong.UNEXPLAINED, [f"ledger: an effect that no event explains: {dict(row)}"])
    in_order = [(row["key"], row["event_id"]) for row in found.effects]
    _judge_order(verdict, expected.order_of_keys(written, states), "ledger: effects", in_order)


def _judge_order(
    verdict: Verdict, orders: Mapping[str, Sequence[str]], what: str, in_order: Sequence[tuple[str, str]]
) -> None:
    """The first appearance of every event of a key follows the key's log."""
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for key, event in in_order:
        seen[key].setdefault(event)
    for key, order in orders.items():
        place = {event: index for index, event in enumerate(order)}
        found = [place[event] for event in seen[key] if event in place]
        for before, after in pairwise(found):
            if after < before:
                sentence = f"{what} of key {key!r}: event {order[after]!r} came behind {order[before]!r}"
                verdict.add(Wrong.OUT_OF_ORDER, [sentence])


def _judge_parked(verdict: Verdict, written: Written, found: Found) -> None:
    """What comes behind a dead letter of its key waits whole, once, in the ledger alone."""
    wanted = expected.parked(written, found.states(LEDGER))
    records = {logged.place: (told.event_id, logged) for logged, told in written.records}
    held = Counter(row["event_id"] for row in found.parked)
    verdict.add(Wrong.LOST, [f"ledger: {_name(told)} is not parked" for i, told in wanted.items() if not held[i]])
    verdict.add(Wrong.DOUBLED, [f"ledger: {i!r} is parked {n} times" for i, n in held.items() if n > 1])
    for row in found.parked:
        place = (row["topic"], row["partition"], row["offset"])
        names = [name.decode() for name in row["header_names"]]
        kept = Logged(place, row["key"], row["value"], tuple(zip(names, row["header_values"], strict=True)))
        if row["code"] != LEDGER or row["event_id"] not in wanted or records.get(place) != (row["event_id"], kept):
            verdict.add(Wrong.UNEXPLAINED, [f"{row['code']}: {row['event_id']!r} is parked, or not whole"])


def _judge_accounts(verdict: Verdict, written: Written, found: Found) -> None:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for told in expected.events(written, found.states(LEDGER)).values():
        count, cents = sums[told.key]
        sums[told.key] = (count + 1, cents + told.cents)
    held = {row["key"]: (row["events"], row["cents"]) for row in found.accounts}
    for key in sums.keys() | held.keys():
        wanted, actual = sums.get(key, (0, 0)), held.get(key, (0, 0))
        if wanted != actual:
            sentence = f"ledger: account {key!r} should have {wanted[0]} events and {wanted[1]} cents, has {actual}"
            verdict.add(Wrong.DOUBLED if actual[0] > wanted[0] else Wrong.LOST, [sentence])


def _judge_claims(verdict: Verdict, written: Written, found: Found) -> None:
    wanted = expected.claims(written)
    by_job: dict[str, set[Any]] = {job: set() for job in found.jobs}
    for row in found.claims:
        by_job[row["code"]].add((row["bucket"], row["id"]))
    for job, held in by_job.items():
        lost = [f"{job}: no claim of {_name(wanted[claim])}" for claim in wanted.keys() - held]
        verdict.add(Wrong.LOST, lost)
        verdict.add(Wrong.UNEXPLAINED, [f"{job}: a claim that no event explains: {c}" for c in held - wanted.keys()])
    same_id = Counter((row["code"], row["id"]) for row in found.claims)
    verdict.add(Wrong.DOUBLED, [f"{job}: {n} claims of {i}" for (job, i), n in same_id.items() if n > 1])


def _judge_documents(
    verdict: Verdict, job: str, newest: Mapping[str, expected.Newest], found: Mapping[str, Mapping[str, Any]]
) -> None:
    for key, state in newest.items():
        document = found.get(key)
        if document == state.document:
            continue
        if document is None:
            verdict.add(Wrong.LOST, [f"{job}: {key!r} is missing, version {state.version} is its newest"])
        elif state.document is None:
            verdict.add(Wrong.RESURRECTED, [f"{job}: {key!r} was removed at {state.version}, and is there: {document}"])
        else:
            verdict.add(Wrong.STALE, [f"{job}: {key!r} should be {state.document}, is {document}"])
    verdict.add(Wrong.UNEXPLAINED, [f"{job}: {key!r} was never told" for key in found.keys() - newest.keys()])


def _plain_rows(verdict: Verdict, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    keys = Counter(row["key"] for row in rows)
    verdict.add(Wrong.DOUBLED, [f"{REPORT}: {n} rows of {key!r}" for key, n in keys.items() if n > 1])
    for row in rows:
        yield row["key"], {**row, "version": int(row["version"]), "cents": int(row["cents"])}


def _judge_published(verdict: Verdict, written: Written, found: Found) -> None:
    """Each applied event is published under one id, however often; first appearances keep their key's order."""
    states, in_order = found.states(LEDGER), []
    events, ids = expected.events(written, states), defaultdict[str, set[str | None]](set)
    for record in found.published:
        body = json.loads(record.value or b"{}")
        ids[body["cause"]].add(record.header("ce_id"))
        in_order.append((body["key"], body["cause"]))
    lost = [f"{LEDGER}: nothing published of {_name(told)}" for event, told in events.items() if event not in ids]
    verdict.add(Wrong.LOST, lost)
    verdict.add(
        Wrong.DOUBLED, [f"{LEDGER}: {e!r} is published as {sorted(map(str, i))}" for e, i in ids.items() if len(i) > 1]
    )
    strange = [f"{LEDGER}: something published of {event!r}" for event in ids.keys() - events.keys()]
    verdict.add(Wrong.UNEXPLAINED, strange)
    _judge_order(verdict, expected.order_of_keys(written, states), "ledger: publications", in_order)


def _name(told: Told) -> str:
    return f"{told.kind} {told.event_id!r} of key {told.key!r}, version {told.version}"
