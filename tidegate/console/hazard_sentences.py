"""The sentences of a plan's hazards, and what can be done about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from dlq.runs import RunKind
from dlq.states import FINAL, FORCE_HELPS, QUARANTINED_WHY, LetterState
from tidegate.console.replay_hazards import Found, Hazard, HazardCode, command_of

_MOST_NAMED = 10


def hazards_of(found: Found) -> Sequence[Hazard]:
    """Returns the hazards whose count is not 0, those about what is done and what is not first."""
    told = [*_of_order(found), *_of_what_is_left_out(found)]
    if found.kind is RunKind.REPLAY:
        told += [*_of_what_passed_since(found), *_of_claims(found), *_of_records(found), *_of_deeds(found)]
    return [hazard for hazard in told if hazard.count]


def hazards_of_items(found: Found) -> Sequence[Hazard]:
    """Returns those of items of a job by the clock: without order, claim and record, and never rehearsed."""
    told = list(_of_what_is_left_out(found))
    if found.kind is RunKind.REPLAY:
        told += [replace(hazard, remedy="") for hazard in (_replayed_before(found), _last_try(found))]
    return [hazard for hazard in told if hazard.count]


def _of_order(found: Found) -> Iterator[Hazard]:
    of = found.sequences
    done = "replayed" if found.kind is RunKind.REPLAY else "discarded"
    yield Hazard(
        code=HazardCode.LOOSE,
        count=found.loose,
        sentence=f"of {_count(found.loose, 'key')} of the job events wait with no letter before them: a run was cut "
        "short there, or a letter was erased; any run of the job handles them first",
    )
    yield Hazard(
        code=HazardCode.PARKED,
        count=of.free,
        sentence=f"{_count(of.free, 'event')} parked behind these letters will be handled too, in order and each "
        "key up to its first failure, by the job's handlers as they are now",
        remedy="" if found.kind is RunKind.REPLAY else "look at them before: 'tidegate find TOPIC:PARTITION:OFFSET'",
    )
    yield Hazard(
        code=HazardCode.HELD,
        count=of.held,
        sentence=f"{_count(of.held, 'event')} parked behind these letters will stay: a letter that is not among them "
        "stands before each",
        remedy=_include_earlier(found),
    )
    yield Hazard(
        code=HazardCode.BEHIND,
        count=of.behind,
        sentence=f"{_count(of.behind, 'letter')} will not be {done}: {_count(of.earlier, 'earlier letter')} of the "
        "same keys must come first and are not among these",
        remedy=_include_earlier(found),
        sample=of.earlier_first[0] if of.earlier_first else None,
    )


def _include_earlier(found: Found) -> str:
    of = found.sequences
    if not of.earlier:
        return f"include all letters of the job: '{command_of(found.kind)} --job {found.job}'"
    force = " --force" if of.need_force else ""
    if of.earlier > _MOST_NAMED or of.earlier > len(of.earlier_first):
        return f"include all letters of the job: '{command_of(found.kind)} --job {found.job}{force}'"
    named = " ".join(f"--letter {letter}" for letter in of.earlier_first)
    return f"deal with the earlier ones first: '{command_of(found.kind)} {named}{force}'"


def _of_what_is_left_out(found: Found) -> Iterator[Hazard]:
    states = found.states
    replaying = states.get(LetterState.REPLAYING, 0)
    runs = ", ".join(str(run) for run in found.runs) or "that has just ended"
    yield Hazard(
        code=HazardCode.REPLAYING,
        count=replaying,
        sentence=f"{_left_out(found, replaying)}: in the hands of run {runs}",
        remedy="see how it goes: 'tidegate dlq runs'; what it leaves undecided can be asked for again",
    )
    quarantined = states.get(LetterState.QUARANTINED, 0)
    yield Hazard(
        code=HazardCode.QUARANTINED,
        count=quarantined,
        sentence=f"{_left_out(found, quarantined)}: {QUARANTINED_WHY}",
        remedy=FORCE_HELPS if not found.is_forced else "add --status quarantined",
    )
    decided = {state: count for state, count in states.items() if state in FINAL}
    yield Hazard(
        code=HazardCode.DECIDED,
        count=sum(decided.values()),
        sentence=f"{_left_out(found, sum(decided.values()))}: decided about before ({_by_state(decided)})",
    )


def _left_out(found: Found, number: int) -> str:
    """`more` only where the plan has some: a plan of nothing would seem to have more than it has."""
    told = _count(number, "more letter" if found.letters else "letter")
    return f"{told} {_verb(number, 'is', 'are')} left out"


def _by_state(counts: Mapping[LetterState, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))


def _of_what_passed_since(found: Found) -> Iterator[Hazard]:
    keyed = found.facts["keyed"] if found.order == "skip" else 0
    yield Hazard(
        code=HazardCode.LATER_PASSED,
        count=keyed,
        sentence=f"{_count(keyed, 'letter')} {_verb(keyed, 'has', 'have')} a key, and the job does not park "
        '(order="skip"): later events of '
        "these keys may have been handled since, and the letters' own come after them now",
        remedy="make sure that the handlers do not let an older event overwrite what a newer one has done",
    )
    versioned = found.letters if found.order == "latest-wins" else 0
    yield Hazard(
        code=HazardCode.NEWEST_WINS,
        count=versioned,
        sentence="newer versions may have been applied since: the newest wins, and letters that are older than what "
        "the store holds end as superseded, without harm",
    )


def _of_claims(found: Found) -> Iterator[Hazard]:
    facts = found.facts
    yield _letters(
        found,
        HazardCode.CLAIM_FORGOTTEN,
        "forgotten",
        "failed before the job's dedupe horizon, and their claims are forgotten: if the event came again later and "
        "that claim is forgotten, too, its effect will be doubled; replay claims the id anew",
        f"look for what it did: 'tidegate dlq show {facts['forgotten_sample']}'; discard what must not act twice",
    )
    yield _letters(
        found,
        HazardCode.HANDLED_SINCE,
        "handled_since",
        "failed before the job's dedupe horizon, and a later delivery of the event was taken since: they end as "
        "already_processed, without effect",
    )
    unclaimed = facts["unclaimed"]
    yield _letters(
        found,
        HazardCode.UNCLAIMED,
        "unclaimed",
        f"{_verb(unclaimed, 'has', 'have')} no claim (undecodable, or their handling never ended): the id is claimed "
        "at replay, and where another delivery of the event has it, the letter ends as already_processed",
    )


def _of_records(found: Found) -> Iterator[Hazard]:
    absent, unread = found.facts["absent"], found.facts["unread"]
    yield _letters(
        found,
        HazardCode.NO_PAYLOAD,
        "absent",
        f"{_verb(absent, 'holds', 'hold')} no payload, because the client could not read the record: refused if "
        "replayed",
        "see whether the topic still has one: 'tidegate dlq show "
        f"{found.facts['absent_sample']}' names its place; what it should say can be given by 'tidegate dlq edit'",
    )
    yield _letters(
        found,
        HazardCode.UNREAD_TOPIC,
        "unread",
        f"{_verb(unread, 'is', 'are')} of a topic that the job reads no more: refused if replayed",
        "replay them with a version of the job that reads it, or discard them",
    )


def _of_deeds(found: Found) -> Iterator[Hazard]:
    facts = found.facts
    passed_by, edited = facts["passed_by"], facts["edited"]
    yield _letters(
        found,
        HazardCode.PASSED_BY,
        "passed_by",
        f"{_verb(passed_by, 'was', 'were')} discarded by somebody before: a replay ends in discarded, unhandled",
    )
    yield _letters(
        found,
        HazardCode.EDITED,
        "edited",
        f"{_verb(edited, 'was', 'were')} edited: what is handled, and the id that is claimed, is as the edit says",
        f"see what was changed, by whom and why: 'tidegate dlq show {facts['edited_sample']}'",
    )
    yield _replayed_before(found)
    yield _last_try(found)


def _replayed_before(found: Found) -> Hazard:
    were = _verb(found.facts["replayed"], "was", "were")
    return _letters(
        found,
        HazardCode.REPLAYED_BEFORE,
        "replayed",
        f"{were} replayed before, and failed again",
        "--rehearse tells what passes today, and changes nothing",
    )


def _last_try(found: Found) -> Hazard:
    fail = _verb(found.facts["last_try"], "it fails", "they fail")
    return _letters(
        found,
        HazardCode.LAST_TRY,
        "last_try",
        f"will be quarantined if {fail} once more: {found.most_replays} replays is the most",
        "--rehearse first",
    )


def _letters(found: Found, code: HazardCode, fact: str, are: str, remedy: str = "") -> Hazard:
    count, sample = found.facts[fact], found.facts[f"{fact}_sample"]
    return Hazard(
        code=code,
        count=count,
        sentence=f"{_count(count, 'letter')} {are}",
        remedy=remedy,
        sample=None if sample is None else UUID(sample),
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _verb(number: int, one: str, many: str) -> str:
    return one if number == 1 else many
