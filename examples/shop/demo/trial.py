"""The trial, top to bottom: set up, send, kill, replace, settle, stop, check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from examples.shop.demo.ahead import Sinks
from examples.shop.demo.checking import checked
from examples.shop.demo.kill import kill_in_flight, unproven
from examples.shop.demo.place import Place, fresh_place
from examples.shop.demo.poison import POISON
from examples.shop.demo.produce import Sent, producing
from examples.shop.demo.purchases import read_purchases
from examples.shop.demo.report import Report, applied_at, opened_at
from examples.shop.demo.sabotage import Sabotage, spoil
from examples.shop.demo.screen import Screen, screen
from examples.shop.demo.story import Post, Step, Story
from examples.shop.demo.watch import DUPLICATES, JOBS, Watch
from examples.shop.demo.workers import start_worker, tidegate, until_ready

# A small story is told slowly: a worker can only be killed at work while there is some.
_SHORTEST_SECONDS = 8.0
# The kill comes in the middle of the traffic: late enough for claims to exist, early enough for much to come.
_KILL_AT = 0.4
_SETTLE_SECONDS = 90.0


@dataclass(frozen=True)
class Options:
    """`orders` None means all of the source. `per_second` bounds how fast the order service sends."""

    orders: int | None = None
    per_second: float = 3000.0
    sabotage: Sabotage | None = None


async def run_trial(options: Options) -> tuple[Report, Place]:
    """Carries the trial out. What is wrong stands in the report; raises TrialFailed if it could not go on."""
    started = time.monotonic()
    purchases = read_purchases(options.orders)
    steps = Story(purchases).steps
    async with AsyncExitStack() as opened:
        shown = opened.enter_context(screen(len(steps)))
        place, database = await opened.enter_async_context(fresh_place())
        http = await opened.enter_async_context(aiohttp.ClientSession())
        watch = Watch(place, database, http, shown, Sent())
        report = Report(place.run, len(purchases))
        await _set_up(place, shown)
        try:
            await _work(watch, report, steps, options)
            report.worker_exits = {w.name: await w.stop() for w in watch.workers if w.is_running}
        finally:
            _end_all(watch)
        shown.say(f"stopped: {report.worker_exits}")
        if options.sabotage is not None:
            report.sabotaged = await spoil(options.sabotage, place, purchases, database=database, http=http)
            shown.say(f"sabotage: {options.sabotage} of order {report.sabotaged}")
        shown.say("checking every account, document, row and dead letter against the source")
        await _check(place, report, options)
        judge(report)
    report.seconds = time.monotonic() - started
    return report, place


async def _set_up(place: Place, shown: Screen) -> None:
    await asyncio.gather(tidegate(place, "migrate"), tidegate(place, "topics", "create"))
    place.write_env_file(token=(await tidegate(place, "tokens", "create", "demo", "--bootstrap")).strip())
    shown.say(f"database, topics, index and table of trial {place.run} are there")


async def _work(watch: Watch, report: Report, steps: Sequence[Step], options: Options) -> None:
    """Everything is sent and settled, one worker was killed and replaced."""
    watch.workers += [await start_worker(watch.place, f"worker-{number}") for number in (1, 2)]
    await until_ready(watch.workers, watch.http)
    watch.screen.say("two workers are ready; the order service begins to send")
    started = time.monotonic()
    rate = min(options.per_second, len(steps) / _SHORTEST_SECONDS)
    async with (
        producing(watch.place.kafka, watch.place.topic, Post(datetime.now(UTC))) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        looking = tasks.create_task(watch.run(), name="watch")
        tasks.create_task(producer.send(steps, per_second=rate, sent=watch.sent), name="send")
        await watch.until_sent(_KILL_AT, len(steps))
        await _kill_and_replace(watch, report)
        await watch.until_settled(len(steps), seconds=len(steps) / rate + _SETTLE_SECONDS)
        report.settling_seconds = time.monotonic() - started
        # A replacement that is still starting could not end in order.
        await until_ready([worker for worker in watch.workers if worker.is_running], watch.http)
        looking.cancel()
    await watch.look()
    await _count(watch, report)
    if report.kill is not None:
        report.failures += await unproven(report.kill, watch.database)


async def _kill_and_replace(watch: Watch, report: Report) -> None:
    sinks = Sinks(watch.place, watch.http, watch.sent)
    report.kill = await kill_in_flight(watch.workers, watch.database, sinks)
    watch.screen.say(f"killed {report.kill.worker} (SIGKILL) with a transaction open: {opened_at(report.kill)}")
    watch.screen.say(f"and with writes in a sink that are not settled: {applied_at(report.kill)}")
    watch.workers.append(await start_worker(watch.place, "worker-3"))
    watch.screen.say("worker-3 takes its place")


async def _count(watch: Watch, report: Report) -> None:
    sent = watch.sent
    report.produced, report.repeats, report.poison = sent.records, sent.repeats, sent.poison
    report.events_per_second = sent.records / report.settling_seconds
    report.claimed = await watch.claimed()
    report.duplicates_dropped = {job: watch.counted(DUPLICATES, job) for job in JOBS}
    report.freshness_seconds = {job: watch.lag_quantiles(job, (0.5, 0.99)) for job in JOBS}


def _end_all(watch: Watch) -> None:
    for worker in watch.workers:
        if worker.is_running:
            worker.process.kill()


async def _check(place: Place, report: Report, options: Options) -> None:
    verdict = await checked(place, orders=options.orders)
    report.figures = [(what, expected, found) for what, expected, found in verdict["figures"]]
    report.dead_letters = verdict["dead_letters"]
    report.failures += verdict["differences"]


def judge(report: Report) -> None:
    """What the checker cannot see: the duplicates, the poison that was sent, the kill, how the workers ended."""
    report.failures += [f"{job}: no duplicate was dropped" for job, n in report.duplicates_dropped.items() if not n]
    if report.poison != len(POISON):
        report.failures.append(f"{report.poison} kinds of poison were sent instead of {len(POISON)}")
    if report.kill is None or not report.kill.batches:
        report.failures.append("the kill hit no transaction in flight")
    if report.kill is None or not report.kill.applied:
        report.failures.append("the kill hit no projection's batch in flight")
    report.failures += [f"{name} ended with {code}" for name, code in report.worker_exits.items() if code]
