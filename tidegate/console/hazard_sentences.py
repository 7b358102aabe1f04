"""The sentences of a plan's hazards, and what can be done about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from dlq.runs import RunKind
from dlq.states import FINAL, LetterState
from tidegate.console.replay_hazards import Found, Hazard, HazardCode, command_of

_MOST_NAMED = 10


def hazards_of(found: Found) -> Sequence[Hazard]:
    """Returns the hazards whose count is not 0, those about what is done and what is not first."""
    told = [*_of_order(found), *_of_what_is_left_out(found)]
    if found.kind is RunKind.REPLAY:
        told += [*_of_what_passed_since(found), *_of_claims(found), *_of_records(found), *_of_deeds(found)]
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
        sentence=f"{_count(replaying, 'more letter')} {_is(replaying)} left out: in the hands of run {runs}",
        remedy="see how it goes: 'tidegate dlq runs'; what it leaves undecided can be asked for again",
    )
    quarantined = states.get(LetterState.QUARANTINED, 0)
    yield Hazard(
        code=HazardCode.QUARANTINED,
        count=quarantined,
        sentence=f"{_count(quarantined, 'more letter')} {_is(quarantined)} left out: quarantined after "
        "too many failed replays",
        remedy="--force includes them" if not found.is_forced else "add --status quarantined",
    )
    decided = sum(count for state, count in states.items() if state in FINAL)
    yield Hazard(
        code=HazardCode.DECIDED,
        count=decided,
        sentence=f"{_count(decided, 'letter')} {_is(decided)} left out: it was decided about them before",
    )


def _of_what_passed_since(found: Found) -> Iterator[Hazard]:
    keyed = found.facts["keyed"] if found.order == "skip" else 0
    yield Hazard(
        code=HazardCode.LATER_PASSED,
        count=keyed,
        sentence=f'{_count(keyed, "letter")} have a key, and the job does not park (order="skip"): later events of '
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
    count = facts["unclaimed"]
    yield _letters(
        found,
        HazardCode.UNCLAIMED,
        "unclaimed",
        f"{'has' if count == 1 else 'have'} no claim (undecodable, or their handling never ended): the id is claimed "
        "at replay, and where another delivery of the event has it, the letter ends as already_processed",
    )


def _of_records(found: Found) -> Iterator[Hazard]:
    absent = found.facts["absent_sample"]
    yield _letters(
        found,
        HazardCode.NO_PAYLOAD,
        "absent",
        "hold no payload, because the client could not read the record: they will be refused, and stay",
        "see whether the topic still has one: 'tidegate dlq show "
        f"{absent}' names its place; what it should say can be given by 'tidegate dlq edit'",
    )
    yield _letters(
        found,
        HazardCode.UNREAD_TOPIC,
        "unread",
        "are of a topic that the job reads no more: they will be refused, and stay",
        "replay them with a version of the job that reads it, or discard them",
    )


def _of_deeds(found: Found) -> Iterator[Hazard]:
    yield _letters(
        found, HazardCode.PASSED_BY, "passed_by", "were discarded by somebody before: they end as discarded, unhandled"
    )
    yield _letters(
        found,
        HazardCode.EDITED,
        "edited",
        "were edited: they are handled as the edit says, and claim the id that it has",
        f"see what was changed, by whom and why: 'tidegate dlq show {found.facts['edited_sample']}'",
    )
    yield _letters(
        found,
        HazardCode.REPLAYED_BEFORE,
        "replayed",
        "were replayed before, and failed again",
        "--rehearse tells which of them pass today, and changes nothing",
    )
    yield _letters(
        found,
        HazardCode.LAST_TRY,
        "last_try",
        f"will be quarantined if they fail once more: {found.most_replays} replays is the most",
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


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
