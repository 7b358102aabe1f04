"""Why a partition does not move, or that it does: from facts to one sentence and the next command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from consumers.intents import IntentKind
from consumers.obstacle import ObstacleKind, find_obstacle
from consumers.presence import State
from tidegate.console.facts import Facts, Said, ago
from tidegate.jobs.selection import resume_command

_STILL_SECONDS = 60.0


class Cause(StrEnum):
    """What an explanation comes down to. A closed set: programs act on it."""

    CAUGHT_UP = "caught_up"
    MOVING = "moving"
    SLOW_HANDLER = "slow_handler"
    WAITING_FOR_RETRY = "waiting_for_retry"
    STALLED = "stalled"
    NOT_VISIBLE = "not_visible"
    OUTAGE = "outage"
    PARKING_FULL = "parking_full"
    LETTER_BACKLOG = "letter_backlog"
    PAUSED = "paused"
    TENANT_PAUSED = "tenant_paused"
    RESUMING = "resuming"
    FLOOD = "flood"
    GAP = "gap"
    RECREATED = "recreated"
    BLOCKED = "blocked"
    MISSING = "missing"
    NEVER_OWNED = "never_owned"
    NO_OWNER = "no_owner"
    TAKING_OVER = "taking_over"
    KAFKA_UNREACHABLE = "kafka_unreachable"
    POSTGRES_UNREACHABLE = "postgres_unreachable"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence, what it comes down to, and the safe commands to type next, in their order."""

    cause: Cause
    sentence: str
    commands: Sequence[str] = field(default=())


def explain(facts: Facts) -> Explanation:
    """Returns what is in the way of the partition: the one thing that has to be resolved first."""
    for reason in _REASONS:
        if (found := reason(facts)) is not None:
            return _with_parked(facts, replace(found, sentence=found.sentence + _remark(facts, found.cause)))
    return _with_parked(facts, _of_a_living_owner(facts))


def _missing(facts: Facts) -> Explanation | None:
    if facts.log is not None or facts.kafka_trouble is not None:
        return None
    return Explanation(
        Cause.MISSING,
        f"Kafka has no partition {facts.where}: the topic is missing or smaller",
        ["tidegate topics create"],
    )


def _out_of_the_log(facts: Facts) -> Explanation | None:
    """Records are gone, or the topic is another one: nothing else matters before that is decided."""
    if facts.position is None or facts.log is None:
        return None
    obstacle = find_obstacle(facts.partition, facts.position, facts.log.range, facts.log.topic_id)
    if obstacle is None:
        return None
    cause = Cause.GAP if obstacle.kind is ObstacleKind.GAP else Cause.RECREATED
    resolving = f"{obstacle.resolving_command(facts.job)} --reason '…'"
    if any(facts.pauses()):
        return Explanation(cause, obstacle.what, [resolving])
    pause = f"tidegate pause {facts.job} --reason '…'"
    return Explanation(cause, obstacle.what, [pause, resolving, f"tidegate resume {facts.job}"])


def _flooded(facts: Facts) -> Explanation | None:
    for intent in facts.intents:
        if intent.kind is IntentKind.FLOOD and intent.covers(facts.partition):
            release = f"tidegate flood release {facts.job} --topic {facts.partition.topic} --until-end"
            return Explanation(Cause.FLOOD, intent.sentence(), [release])
    return None


def _paused(facts: Facts) -> Explanation | None:
    pauses = list(facts.pauses())
    if not pauses:
        return None
    commands = dict.fromkeys(resume_command(facts.job, each) for each in pauses)
    return Explanation(Cause.PAUSED, "; and ".join(each.sentence() for each in pauses), list(commands))


def _without_owner(facts: Facts) -> Explanation | None:
    if facts.owner_speaks:
        return None
    run = [f"tidegate run {facts.job}"]
    if facts.position is None and facts.said is None:
        if facts.has_workers:
            new = "it is new: the job's workers take it within five minutes of its making"
            return Explanation(Cause.NEVER_OWNED, f"nobody has owned it yet; {new}")
        return Explanation(Cause.NEVER_OWNED, f"no worker of {facts.job} has ever owned it", run)
    return Explanation(Cause.NO_OWNER, f"nobody owns it: {_last_owner(facts)}; {_waiting(facts)}", run)


def _last_owner(facts: Facts) -> str:
    said = facts.said
    if said is None:
        owner = facts.position.owner if facts.position is not None and facts.position.owner else "its owner"
        return f"no worker speaks of it, and {owner} moved it last {ago(facts.still_seconds)} ago"
    if said.state is State.RELEASED:
        return f"{said.owner} let it go {ago(said.seen_seconds)} ago and no worker has taken it since"
    return (
        f"{said.owner} has not been seen for {ago(said.seen_seconds)}; it is gone, or cannot reach Postgres. "
        f"It said last: {said.state}"
    )


def _taking_over(facts: Facts) -> Explanation | None:
    said = facts.said
    if said is None or said.state is not State.TAKING_OVER:
        return None
    trouble = f": {said.detail}" if said.detail else ""
    return Explanation(
        Cause.TAKING_OVER, f"{said.owner} has been taking it over for {ago(said.since_seconds)}{trouble}"
    )


def _as_its_owner_says(facts: Facts) -> Explanation | None:
    """What the owner says of itself, where it is more than that it moves."""
    said = facts.said
    if said is None:
        return None
    lasting = ago(said.since_seconds)
    match said.state:
        case State.BLOCKED:
            pause = [] if any(facts.pauses()) else [f"tidegate pause {facts.job} --reason '…'"]
            return Explanation(Cause.BLOCKED, said.detail, [*pause, f"tidegate offsets show {facts.job}"])
        case State.PAUSED:
            return _tenant_paused(facts, said)
        case State.FLOOD:
            return Explanation(Cause.RESUMING, f"it was {said.detail}; its worker goes on within two seconds")
        case State.OUTAGE:
            return Explanation(
                Cause.OUTAGE, f"{said.detail}, for {lasting}; it goes on by itself, and no attempt is counted"
            )
        case State.PARKING:
            told = f"{said.detail}, for {lasting}; it goes on by itself when there is room"
            return Explanation(
                Cause.PARKING_FULL, told, [f"tidegate dlq list --job {facts.job}", _plan_of_replay(facts)]
            )
        case State.BACKLOG:
            told = f"{said.detail}, for {lasting}; it goes on by itself when half of them are in Kafka"
            return Explanation(Cause.LETTER_BACKLOG, told, ["tidegate status", "tidegate topics create"])
        case State.WAITING:
            return Explanation(
                Cause.WAITING_FOR_RETRY, f"a batch waits to be tried again, for {lasting} by now: {said.detail}"
            )
        case State.SLOW:
            return Explanation(Cause.SLOW_HANDLER, f"at work for {lasting}: {said.detail}")
        case State.STALLED:
            return Explanation(Cause.STALLED, f"its worker's client lost sight of it {lasting} ago: {said.detail}")
        case _:
            return None


def _tenant_paused(facts: Facts, said: Said) -> Explanation:
    for intent in facts.paused_tenants():
        if said.detail.startswith(f"tenant {intent.tenant!r} "):
            offset = "" if facts.position is None else f" at offset {facts.position.next_offset}"
            told = (
                f"its next record{offset} is of tenant {intent.tenant!r}, {intent.sentence()}; what follows waits too"
            )
            return Explanation(Cause.TENANT_PAUSED, told, [resume_command(facts.job, intent)])
    return Explanation(
        Cause.RESUMING, f"it was {said.detail}; that has ended, and its worker goes on within two seconds"
    )


def _not_to_be_checked(facts: Facts) -> Explanation | None:
    if facts.kafka_trouble is None or facts.said is None:
        return None
    said = facts.said
    told = f"{said.owner} said {ago(said.seen_seconds)} ago that it is {said.state.replace('_', ' ')}"
    return Explanation(Cause.KAFKA_UNREACHABLE, f"{facts.kafka_trouble}; {told}")


def _not_visible(facts: Facts) -> Explanation | None:
    """The consumer does its work, and readers see nothing of it."""
    view, position = facts.view, facts.position
    if view is None or position is None or view.trouble is None:
        return None
    told = f"settled up to {position.next_offset}, and readers see it up to {view.visible or 0}"
    return Explanation(
        Cause.NOT_VISIBLE,
        f"{told}: nothing new has become visible for {ago(view.trouble_seconds)}: {view.trouble}; it is tried again",
        ["tidegate status --partitions"],
    )


_REASONS: Sequence[Callable[[Facts], Explanation | None]] = (
    _missing,
    _out_of_the_log,
    _flooded,
    _paused,
    _without_owner,
    _taking_over,
    _as_its_owner_says,
    _not_to_be_checked,
    _not_visible,
)


def _of_a_living_owner(facts: Facts) -> Explanation:
    said, behind = facts.said, facts.behind
    position = 0 if facts.position is None else facts.position.next_offset
    if behind == 0 or (said is not None and said.state is State.CAUGHT_UP):
        return Explanation(Cause.CAUGHT_UP, f"caught up at offset {position}{_waiting_tenants(facts)}{_rewound(facts)}")
    still = ""
    if facts.still_seconds > _STILL_SECONDS:
        still = f", though nothing was settled for {ago(facts.still_seconds)}"
    return Explanation(
        Cause.MOVING,
        f"it moves: {behind} offsets to go from {position}{still}{_waiting_tenants(facts)}{_rewound(facts)}",
    )


def _waiting_tenants(facts: Facts) -> str:
    names = ", ".join(repr(intent.tenant) for intent in facts.paused_tenants())
    return f"; paused tenants, none of whose records has come up: {names}" if names else ""


def _waiting(facts: Facts) -> str:
    match facts.behind:
        case None:
            return "how much waits cannot be told"
        case 0:
            return "nothing waits now"
        case count:
            return f"{count} offsets wait"


def _rewound(facts: Facts) -> str:
    view = facts.view
    if view is None or view.rewound_from is None:
        return ""
    return f"; it was moved back from {view.rewound_from}, and readers see it up to {view.visible or 0}"


def _remark(facts: Facts, cause: Cause) -> str:
    """What the operator should know beside: that resolving this alone would not make it move, or what was not seen."""
    if cause in (Cause.PAUSED, Cause.GAP, Cause.RECREATED, Cause.FLOOD) and not facts.owner_speaks:
        return "; besides, nobody owns it"
    if facts.kafka_trouble is not None and cause is not Cause.KAFKA_UNREACHABLE:
        return f" ({facts.kafka_trouble})"
    return ""


def _with_parked(facts: Facts, found: Explanation) -> Explanation:
    """Told, too: what has been passed and still has to be handled, and how its replay is planned."""
    if not facts.parked:
        return found
    told = "1 event of it is" if facts.parked == 1 else f"{facts.parked} events of it are"
    sentence = f"{found.sentence}; {told} parked behind dead letters of their keys"
    return Explanation(found.cause, sentence, list(dict.fromkeys([*found.commands, _plan_of_replay(facts)])))


def _plan_of_replay(facts: Facts) -> str:
    return f"tidegate dlq replay --job {facts.job}"
