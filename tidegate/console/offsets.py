"""Positions moved by hand: with the job paused, by a plan, permitted, audited, what is skipped kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from consumers.intents import Intent, IntentKind, intent_of
from consumers.obstacle import Obstacle, ObstacleKind
from tidegate.app import App
from tidegate.console.moves import ACTIONS, AcceptGap, Adopt, Ask, Move, Stand, plan_move
from tidegate.console.stands import LivePlace, live_places, logs_of, stands_of
from tidegate.jobs.declaration import Job
from tidegate_kernel.audit import permitted
from tidegate_kernel.errors import Conflict, Denied, Misconfigured, Transient
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.permissions import Actor, Deed
from tidegate_kernel.postgres import Connection, connect, translated_errors
from tidegate_kernel.queries import load_queries
from tidegate_kernel.settings import Settings

_QUERIES = load_queries("tidegate.console")
_INTENT_QUERIES = load_queries("consumers")

# An owner that settles holds its row for milliseconds; whoever holds it for longer is not to be waited for.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"


@dataclass(frozen=True, slots=True)
class Target:
    """Which partitions of the job are meant: one, all of a topic (`partition` None), or all (`topic` None)."""

    topic: str | None = None
    partition: int | None = None

    def covers(self, partition: TopicPartition) -> bool:
        return self.topic in (None, partition.topic) and self.partition in (None, partition.partition)

    def __str__(self) -> str:
        parts = [each for each in (self.topic, self.partition) if each is not None]
        return ":".join(map(str, parts)) or "any partition"


class Plan(NamedTuple):
    """What would be moved. `unpaused`: partitions of it that no pause covers, so that it would be refused."""

    job: Job
    ask: Ask
    moves: Sequence[Move]
    unpaused: Sequence[TopicPartition]

    @property
    def pause_line(self) -> str:
        """How to pause what is moved, to copy."""
        only = self.moves[0].partition if len(self.moves) == 1 else None
        part = "" if only is None else f" --partition {only.topic}:{only.partition}"
        return f"run 'tidegate pause {self.job.code}{part} --reason …' first"


async def plan_offsets(app: App, settings: Settings, job: Job, target: Target, ask: Ask) -> Plan:
    """Returns what `ask` would do now. Raises Misconfigured for what cannot be done, with what can."""
    try:
        # Positions first: a log looked at later can only reach further, so none seems to be beyond its end.
        async with connect(settings.postgres_dsn.get_secret_value()) as connection:
            with translated_errors("plan offsets"):
                positions = await live_places(connection, app, job)
                intents = await _intents(connection, app, job)
        logs = await logs_of(settings, job)
    except Transient as error:
        raise Misconfigured(f"the offsets cannot be read: {error}") from error
    stands = [stand for stand in stands_of(positions, logs) if target.covers(stand.partition)]
    moves = _moves(job, target, ask, stands)
    return Plan(job, ask, moves, [move.partition for move in moves if not _is_paused(move.partition, intents)])


async def move_offsets(app: App, connection: Connection, actor: Actor, plan: Plan, *, reason: str) -> None:
    """The positions stand where the plan says, under newer epochs, and what it skips is kept. All of it or nothing.

    Raises Denied without permission, reason or pause; Conflict if a position is not where it was planned from.
    """
    told = [f"{m.partition} {m.before} -> {m.after}" for m in plan.moves]
    deed = Deed(ACTIONS[type(plan.ask)], app.group(plan.job.job_code), reason.strip(), {"moves": told})
    async with permitted(connection, actor, deed) as transaction:
        number = await transaction.fetchval(_QUERIES["lock_job"], app.service, plan.job.code)
        _require_pause(plan, await _standing(transaction, number))
        _require_unmoved(plan, await _locked(transaction, number, plan))
        for move in plan.moves:
            await _move(transaction, number, move, actor, deed.reason)


def _moves(job: Job, target: Target, ask: Ask, stands: Sequence[Stand]) -> list[Move]:
    """The moves of what was named; of a whole topic or job, of those partitions that need it."""
    if not stands:
        raise Misconfigured(
            f"job {job.code!r} has no position in {target}; 'tidegate offsets show {job.code}' lists what it has"
        )
    if target.partition is not None:
        return [plan_move(stands[0], ask)]
    wanted = [stand for stand in stands if _resolves(ask, stand.obstacle)]
    if not wanted:
        raise Misconfigured(f"job {job.code!r}: nothing in {target} needs it")
    return [plan_move(stand, ask) for stand in wanted]


def _resolves(ask: Ask, obstacle: Obstacle | None) -> bool:
    kind = None if obstacle is None else obstacle.kind
    match ask:
        case AcceptGap():
            return kind is ObstacleKind.GAP
        case Adopt():
            return kind in (ObstacleKind.RECREATED, ObstacleKind.BEYOND_END)
        case _:
            return False


async def _intents(connection: Connection, app: App, job: Job) -> list[Intent]:
    rows = await connection.fetch(_QUERIES["newest_generations"], app.service)
    return await _standing(connection, next((row["id"] for row in rows if row["code"] == job.code), None))


async def _standing(connection: Connection, number: int | None) -> list[Intent]:
    return [intent_of(row) for row in await connection.fetch(_INTENT_QUERIES["standing_intents"], number)]


def _is_paused(partition: TopicPartition, intents: Sequence[Intent]) -> bool:
    return any(each.kind is IntentKind.PAUSE and each.covers(partition) for each in intents)


def _require_pause(plan: Plan, intents: Sequence[Intent]) -> None:
    for move in plan.moves:
        if not _is_paused(move.partition, intents):
            where = str(move.partition)
            raise Denied(f"{where} is not paused, so a worker may be at work there; {plan.pause_line}")


async def _locked(connection: Connection, number: int, plan: Plan) -> dict[TopicPartition, LivePlace]:
    await connection.execute(_LOCK_TIMEOUT)
    places = [move.partition for move in plan.moves]
    topics, partitions = [place.topic for place in places], [place.partition for place in places]
    try:
        rows = await connection.fetch(_QUERIES["lock_positions"], number, topics, partitions)
    except asyncpg.LockNotAvailableError as error:
        raise Transient("its owner is in the middle of a batch and holds the position; try again") from error
    return {
        TopicPartition(row["topic"], row["partition"]): LivePlace(row["next_offset"], row["topic_id"]) for row in rows
    }


def _require_unmoved(plan: Plan, locked: Mapping[TopicPartition, LivePlace]) -> None:
    for move in plan.moves:
        if locked.get(move.partition) != (move.before, move.former_id):
            where = str(move.partition)
            raise Conflict(f"{where} does not stand at {move.before} any more: look at the new plan first")


async def _move(connection: Connection, number: int, move: Move, actor: Actor, reason: str) -> None:
    topic, partition = move.partition
    await connection.execute(_QUERIES["move_position"], number, topic, partition, move.after, move.topic_id)
    if move.first_skipped is not None:
        place = (topic, move.topic_id, partition, move.first_skipped, move.after - 1)
        await connection.execute(_QUERIES["keep_skipped_range"], number, *place, move.cause, actor.name, reason)
