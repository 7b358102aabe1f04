"""What is left in Postgres and in the sink when a schedule has been played to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from dlq.runs import Outcome
from dlq.states import LetterState
from projections.folds.codec import StateCodec
from projections.folds.dirty import DirtyKeys
from projections.folds.renderer import Projection, Renderer
from tests.property.application import CODE, Log, log_document, published_topic
from tests.property.schedule import Kind
from tests.property.world import World
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import JobCode, JobId, TopicPartition

Place = tuple[str, int, int]
"""Topic, partition, offset."""

SCHEMA = """
CREATE TABLE effect (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service text NOT NULL, event text NOT NULL, topic text NOT NULL, partition int NOT NULL, place bigint NOT NULL
);
CREATE INDEX ON effect (service);
CREATE TABLE moved (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL, run bigint NOT NULL, topic text NOT NULL, partition int NOT NULL,
    owner text, epoch bigint NOT NULL, next_offset bigint NOT NULL
);
CREATE INDEX ON moved (job);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moved (job, run, topic, partition, owner, epoch, next_offset)
    VALUES (NEW.job, NEW.run, NEW.topic, NEW.partition, NEW.owner, NEW.epoch, NEW.next_offset);
    RETURN NULL;
END $$;
CREATE TRIGGER note_move AFTER UPDATE ON tidegate.position FOR EACH ROW EXECUTE FUNCTION note_move();
CREATE TABLE decided (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL, run bigint NOT NULL, token bigint NOT NULL, letter uuid NOT NULL, outcome text NOT NULL
);
CREATE INDEX ON decided (job);
CREATE FUNCTION note_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO decided (job, run, token, letter, outcome)
    SELECT r.job, r.id, r.token, NEW.letter, NEW.outcome FROM tidegate.replay AS r WHERE r.id = NEW.replay;
    RETURN NULL;
END $$;
CREATE TRIGGER note_outcome AFTER UPDATE ON tidegate.replay_letter FOR EACH ROW
WHEN (NEW.outcome IS NOT NULL) EXECUTE FUNCTION note_outcome();
"""

_JOB = "SELECT id FROM tidegate.job WHERE service = $1"
_EFFECTS = "SELECT event, topic, partition, place FROM effect WHERE service = $1 ORDER BY n"
_FOLDED = """
SELECT x.e->>0 AS event, x.e->>1 AS topic, (x.e->>2)::int AS partition, (x.e->>3)::bigint AS place, s.key
FROM tidegate.fold_state AS s
CROSS JOIN LATERAL json_array_elements(s.state->'effects') WITH ORDINALITY AS x (e, n)
WHERE s.job = $1
ORDER BY s.key, x.n
"""
_LETTERS = """
SELECT
    id, topic, partition, "offset", claimed_id, reason, key, value, header_names, header_values, occurrences, state,
    replay_count
FROM tidegate.dead_letter WHERE job = $1
"""
_PARKED = """
SELECT topic, partition, "offset", key, value, header_names, header_values FROM tidegate.parked WHERE job = $1
"""
_ODD_KEYS = """
SELECT b.topic, b.key, b.parked, count(p.id) AS events, count(DISTINCT l.letter) AS letters
FROM tidegate.blocked_key AS b
LEFT JOIN tidegate.parked AS p ON (p.job, p.topic, p.order_key) = (b.job, b.topic, b.key)
LEFT JOIN tidegate.blocking_letter AS l ON (l.job, l.topic, l.key) = (b.job, b.topic, b.key)
WHERE b.job = $1
GROUP BY b.job, b.topic, b.key
HAVING count(DISTINCT l.letter) = 0 OR count(DISTINCT p.id) <> b.parked
"""
_CLAIMS = "SELECT count(*) FROM tidegate.inbox WHERE job = $1"
_PUBLISHED = """
SELECT topic, convert_from(key, 'UTF8') AS key, 'tg-dlq-state'::bytea = ANY (header_names) AS is_outcome
FROM tidegate.outbox WHERE topic = ANY ($1::text[])
"""
_VERDICTS = "SELECT run, token, letter, outcome FROM decided WHERE job = $1 ORDER BY n"
_RUNS = "SELECT id, state FROM tidegate.replay WHERE job = $1"
_MOVES = "SELECT run, topic, partition, owner, epoch, next_offset FROM moved WHERE job = $1 ORDER BY n"


class Effect(NamedTuple):
    event: str
    place: Place


Content = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value, headers."""


class Letter(NamedTuple):
    id: UUID
    place: Place
    has_claim: bool
    reason: Reason
    content: Content
    occurrences: int
    state: LetterState
    replays: int


class Verdict(NamedTuple):
    """A run's outcome of a letter, under the token that the run had then."""

    run: int
    token: int
    letter: UUID
    outcome: Outcome


class Move(NamedTuple):
    run: int
    partition: TopicPartition
    owner: str | None
    epoch: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Effects, moves and verdicts in the order of their happening. `odd_keys` are blocked keys that nothing blocks, or
    that count what waits behind them wrongly. `runs`: the states of runs over dead letters."""

    effects: Sequence[Effect]
    letters: Sequence[Letter]
    parked: Mapping[Place, Content]
    odd_keys: Sequence[asyncpg.Record]
    claims: int
    published: Sequence[str]
    letters_published: int
    outcomes_published: int
    verdicts: Sequence[Verdict]
    runs: Mapping[int, str]
    moves: Sequence[Move]
    documents: Mapping[str, Any]
    folded: Mapping[str, Sequence[str]]
    positions: Mapping[TopicPartition, int]


async def gather_evidence(world: World) -> Evidence:
    """Asked beside all faults, after the last process has ended."""
    fetch = world.ask
    job = (await fetch(_JOB, world.service))[0]["id"]
    dlq, out = world.app.dlq_topic(JobCode(world.app.jobs[0].code)), published_topic(world.service)
    published = await fetch(_PUBLISHED, [dlq, out])
    await _render(world, job)
    folded = await fetch(_FOLDED, job)
    return Evidence(
        effects=[_effect(row) for row in folded or await fetch(_EFFECTS, world.service)],
        letters=[_letter(row) for row in await fetch(_LETTERS, job)],
        parked={_place(row): _content(row) for row in await fetch(_PARKED, job)},
        odd_keys=await fetch(_ODD_KEYS, job),
        claims=(await fetch(_CLAIMS, job))[0]["count"],
        published=[row["key"] for row in published if row["topic"] == out],
        letters_published=sum(row["topic"] == dlq and not row["is_outcome"] for row in published),
        outcomes_published=sum(row["is_outcome"] for row in published),
        verdicts=[_verdict(row) for row in await fetch(_VERDICTS, job)],
        runs={row["id"]: row["state"] for row in await fetch(_RUNS, job)},
        moves=[_move(row) for row in await fetch(_MOVES, job)],
        documents=world.sink.rows(),
        folded=_by_state(folded),
        positions=await world.positions(),
    )


async def _render(world: World, job: JobId) -> None:
    """What renderers do in workers, after all of them have ended."""
    if world.kind is Kind.FOLD:
        projection = Projection(CODE, StateCodec(Log), log_document, "memory", "", 100)
        dirty = DirtyKeys(world.pool, job)
        renderer = Renderer(dirty, world.sink, projection, world.clock, metrics=world.metrics)

        async def render_all() -> None:
            # The backend of a client that was killed may hold a key for a moment: it is passed over until then.
            while (await dirty.state()).waiting:
                await renderer.render_all()

        await world.loop.statement(render_all)


def _by_state(rows: Sequence[asyncpg.Record]) -> Mapping[str, Sequence[str]]:
    return {key: [row["event"] for row in group] for key, group in groupby(rows, key=lambda row: row["key"])}


def _effect(row: asyncpg.Record) -> Effect:
    return Effect(row["event"], (row["topic"], row["partition"], row["place"]))


def _letter(row: asyncpg.Record) -> Letter:
    return Letter(
        row["id"],
        _place(row),
        row["claimed_id"] is not None,
        Reason(row["reason"]),
        _content(row),
        row["occurrences"],
        LetterState(row["state"]),
        row["replay_count"],
    )


def _verdict(row: asyncpg.Record) -> Verdict:
    return Verdict(row["run"], row["token"], row["letter"], Outcome(row["outcome"]))


def _place(row: asyncpg.Record) -> Place:
    return row["topic"], row["partition"], row["offset"]


def _content(row: asyncpg.Record) -> Content:
    names = [name.decode() for name in row["header_names"]]
    return row["key"], row["value"], list(zip(names, row["header_values"], strict=True))


def _move(row: asyncpg.Record) -> Move:
    partition = TopicPartition(row["topic"], row["partition"])
    return Move(row["run"], partition, row["owner"], row["epoch"], row["next_offset"])
