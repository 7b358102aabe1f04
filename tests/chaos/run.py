"""One run: faults for a while, then calm until everything is settled, then the audit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import asyncpg

from tests.chaos.auditor.audit import audit
from tests.chaos.auditor.found import Addresses, log_ends
from tests.chaos.auditor.verdict import Verdict
from tests.chaos.auditor.written import SOURCES
from tests.chaos.faults import STRIKES, Fault
from tests.chaos.flight import Sight
from tests.chaos.producer import producing
from tests.chaos.replays import replaying
from tests.chaos.scene import Scene
from tests.chaos.workers import Ended

# Pauses of ten seconds and more between attempts are allowed; a job that needs longer than this hangs.
_DRAIN_SECONDS = 150.0
_LOOK_SECONDS = 0.5
_WARM_UP_SECONDS = 2.0
# What a stop may take: the drain time-out that the scene sets, closing, and what two busy cores add.
_STOP_SECONDS = 4.0 + 8.0 + 1.0


@dataclass(frozen=True)
class Plan:
    """What a run does. Equal plans strike in the same order, with the same pauses."""

    seconds: float
    seed: int
    faults: Sequence[Fault] = tuple(Fault)
    least_kinds: int = 8
    least_per_minute: float = 20_000
    longest_pause: float = 2.0


@dataclass(frozen=True)
class Report:
    """What a run showed."""

    plan: Plan
    verdict: Verdict
    kinds: dict[str, int]
    """How often each kind struck with records in flight."""
    unproven: dict[str, int]
    records_per_minute: float
    drain_seconds: float
    ends: Sequence[Ended]
    complaints: Sequence[str]
    replays: Mapping[str, int] = field(default_factory=dict)
    """How runs over dead letters ended."""

    @property
    def is_good(self) -> bool:
        return self.verdict.is_clean and not self.complaints

    def lines(self) -> list[str]:
        """The report as people read it; the verdict comes last."""
        by_cause = Counter(f"{end.cause or 'by themselves'} with {end.code}" for end in self.ends)
        return [
            *(f"{count:4d} × {kind}, records in flight" for kind, count in sorted(self.kinds.items())),
            *(f"{count:4d} × {kind}, nothing in flight: not counted" for kind, count in sorted(self.unproven.items())),
            f"workers ended: {', '.join(f'{count} {cause}' for cause, count in sorted(by_cause.items()))}",
            f"runs over letters: {', '.join(f'{count} {end}' for end, count in sorted(self.replays.items()))}",
            f"letters: {', '.join(f'{count} {state}' for state, count in sorted(self.verdict.letters.items()))}",
            f"{self.verdict.records} records, {self.verdict.events} events to apply once",
            f"{self.records_per_minute:.0f} records a minute settled by every job",
            f"{self.drain_seconds:.1f} s from the last record told until all were settled",
            *self.verdict.first(10),
            *self.complaints,
            f"seed {self.plan.seed}, {self.plan.seconds:.0f} s, {len(self.kinds)} kinds of fault",
            self.verdict.summary,
        ]


async def run(scene: Scene, plan: Plan) -> Report:
    """The scene's story is told under the plan's faults, drained and audited."""
    # The client tells of every attempt to connect while a broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    loop = asyncio.get_running_loop()
    scene.began = loop.time()
    async with producing(scene.producer):
        await asyncio.sleep(_WARM_UP_SECONDS)
        async with replaying(scene.replays, Random(plan.seed)):
            await _strike(scene, plan)
            await scene.healed()
    told_at = loop.time()
    unsettled = await drained(scene)
    drained_at = loop.time()
    await scene.replays.finish()
    unsettled += await drained(scene)
    await scene.fleet.stop()
    verdict = await audit(addresses(scene), scene.folder / "producer.jsonl")
    (scene.folder / "strikes.json").write_text(json.dumps([asdict(each) for each in scene.strikes], indent=1))
    kinds = scene.proven()
    unproven = Counter(each.kind for each in scene.strikes if not each.flight.is_proven)
    per_minute = verdict.records / (drained_at - scene.began) * 60
    complaints = [*_complaints(plan, kinds, per_minute), *_bad_ends(scene.fleet.ends), *scene.replays.complaints]
    if unsettled:
        complaints.append(f"{unsettled} records were not settled within {_DRAIN_SECONDS:.0f} s of calm")
    return Report(
        plan,
        verdict,
        dict(kinds),
        dict(unproven),
        per_minute,
        drained_at - told_at,
        scene.fleet.ends,
        complaints,
        dict(scene.replays.ends),
    )


def addresses(scene: Scene) -> Addresses:
    """Past every proxy."""
    return Addresses(scene.kafka.address, scene.postgres.address, scene.elasticsearch.address, scene.clickhouse.address)


async def _strike(scene: Scene, plan: Plan) -> None:
    """Every kind once, in an order that the seed gives, and again in another order, until the time is over.

    On a machine that is too busy for the least number of kinds in that time it goes on, up to three times as long.
    """
    loop, chance = asyncio.get_running_loop(), Random(plan.seed)
    while True:
        for fault in chance.sample(plan.faults, k=len(plan.faults)):
            # Each fault draws from its own chance: how long one took does not change the next.
            own, pause = Random(chance.random()), chance.uniform(0, plan.longest_pause)
            elapsed = loop.time() - scene.began
            is_enough = len(scene.proven()) >= plan.least_kinds or elapsed >= 3 * plan.seconds
            if elapsed >= plan.seconds and is_enough:
                return
            await STRIKES[fault](scene, own)
            await asyncio.sleep(pause)


async def drained(scene: Scene) -> int:
    """Returns 0 once every record is settled by every job and published; else how many were not in time."""
    return await all_settled(scene.kafka.address, scene.sight)


async def all_settled(bootstrap: str, sight: Sight) -> int:
    """As `drained`, wherever Kafka is and whichever jobs are seen."""
    ends = await log_ends(bootstrap, SOURCES)
    unsettled = -1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while unsettled != 0:
                with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    unsettled = await sight.unsettled(ends)
                await asyncio.sleep(_LOOK_SECONDS if unsettled else 0)
    return unsettled


def _complaints(plan: Plan, kinds: Counter[str], per_minute: float) -> list[str]:
    found = []
    if len(kinds) < plan.least_kinds:
        found.append(f"only {len(kinds)} kinds of fault struck records in flight, {plan.least_kinds} were to")
    if per_minute < plan.least_per_minute:
        found.append(f"only {per_minute:.0f} records a minute were settled, {plan.least_per_minute:.0f} were to be")
    return found


def _bad_ends(ends: Sequence[Ended]) -> list[str]:
    """A worker that was told to stop ends with 0 and in time."""
    stops = [end for end in ends if end.cause == "SIGTERM"]
    return [
        f"{end.worker}: told to stop, ended with {end.code} after {end.seconds:.1f} s"
        for end in stops
        if end.code != 0 or end.seconds > _STOP_SECONDS
    ]


def fresh_folder(folder: Path) -> Path:
    """The folder is there and empty."""
    from tests.chaos.servers import wipe

    wipe(folder)
    folder.mkdir(parents=True)
    return folder
