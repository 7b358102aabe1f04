"""The story, top to bottom: a bad release, a mended one, its repair, the check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

import aiohttp

from examples.shop.demo.checking import checked
from examples.shop.demo.place import Place, fresh_place
from examples.shop.demo.produce import Sent, producing
from examples.shop.demo.purchases import Purchase, read_purchases
from examples.shop.demo.sabotage import Sabotage, spoil
from examples.shop.demo.screen import screen
from examples.shop.demo.story import Post, Step, Story
from examples.shop.demo.watch import Watch
from examples.shop.demo.workers import start_worker, tidegate, until_ready
from examples.shop.demo_dlq.app import BUGGY, MENDED
from examples.shop.demo_dlq.commands import Console
from examples.shop.demo_dlq.pickup import CUSTOMERS, OPEN_ORDERS, Pickup, choose, in_time
from examples.shop.demo_dlq.repair import Repair
from examples.shop.demo_dlq.report import Report
from examples.shop.demo_dlq.standing import Standing, differences, standing

APP = "examples.shop.demo_dlq.app:app"
_SETTLE_SECONDS = 90.0


class Spoilt(StrEnum):
    """DROP, DOUBLE and STALE spoil an effect before the check, as in `make demo`; UNMENDED rolls the bug out again."""

    DROP = "drop"
    DOUBLE = "double"
    STALE = "stale"
    UNMENDED = "unmended"


@dataclass(frozen=True)
class Options:
    """`orders` None means all of the source. `per_second` bounds how fast the order service sends."""

    orders: int | None = None
    per_second: float = 3000.0
    sabotage: Spoilt | None = None


@dataclass(frozen=True)
class _Story:
    """What is told: `steps` in the order of their sending."""

    purchases: Sequence[Purchase]
    pickup: Pickup
    steps: Sequence[Step]


async def run_trial(options: Options) -> tuple[Report, Place]:
    """Carries it out. What is wrong stands in the report; raises TrialFailed if it could not go on."""
    started = time.monotonic()
    purchases = read_purchases(options.orders)
    story = _Story(purchases, choose(purchases), Story(in_time(purchases), poison=()).steps)
    async with AsyncExitStack() as opened:
        shown = opened.enter_context(screen(len(story.steps)))
        fresh, database = await opened.enter_async_context(fresh_place())
        http = await opened.enter_async_context(aiohttp.ClientSession())
        place = await _set_up(fresh)
        shown.say(f"database, topics, index and table of trial {place.run} are there")
        watch = Watch(place, database, http, shown, Sent())
        report = Report(place.run, len(purchases))
        try:
            await _bad_release(watch, report, story, options)
            place = await _mended_release(watch, options)
            await Repair(watch, Console(place, shown), report, purchases).carry_out()
            await _end_workers(watch, report)
        finally:
            for worker in watch.workers:
                if worker.is_running:
                    worker.process.kill()
        await _check(watch, report, story, options)
    report.seconds = time.monotonic() - started
    return report, place


async def _set_up(fresh: Place) -> Place:
    place = _release(fresh, BUGGY)
    await asyncio.gather(tidegate(place, "migrate"), tidegate(place, "topics", "create"))
    token = (await tidegate(place, "tokens", "create", "demo", "--bootstrap")).strip()
    _release(place, MENDED).write_env_file(token=token)
    return replace(place, environment={**place.environment, "TIDEGATE_TOKEN": token})


def _release(place: Place, release: str) -> Place:
    return replace(place, environment={**place.environment, "TIDEGATE_APP": APP, "SHOP_RELEASE": release})


async def _bad_release(watch: Watch, report: Report, story: _Story, options: Options) -> None:
    """Everything is sent and settled by workers of the release with the bug; they have ended."""
    watch.workers += [await start_worker(watch.place, f"worker-{number}") for number in (1, 2)]
    await until_ready(watch.workers, watch.http)
    watch.screen.say(f"1. release {BUGGY}, whose ledger cannot read an order without a chosen pickup_shop (null)")
    watch.screen.say(f"   {CUSTOMERS} customers try the pickup; {OPEN_ORDERS} of their orders come without a choice")
    post = Post(datetime.now(UTC), story.pickup.message)
    async with producing(watch.place.kafka, watch.place.topic, post) as producer, asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(watch.run(), name="watch")
        await producer.send(story.steps, per_second=options.per_second, sent=watch.sent)
        await watch.until_settled(len(story.steps), seconds=_SETTLE_SECONDS)
        looking.cancel()
    report.produced = watch.sent.records
    await _end_workers(watch, report)
    await _judge_bug(report, story, await standing(watch.database))
    stats = await Console(watch.place, watch.screen).type("dlq", "stats")
    Console(watch.place, watch.screen).show(stats.printed + stats.said)


async def _judge_bug(report: Report, story: _Story, found: Standing) -> None:
    later = story.pickup.later_orders(story.steps)
    report.letters, report.keys, report.parked = sum(found.letters.values()), found.keys, len(found.parked)
    report.figure("1. dead letters of the ledger", OPEN_ORDERS, found.letters.get("dead", 0))
    report.figure("1. their keys (customers)", CUSTOMERS, found.keys)
    report.figure("1. kinds of failures", 1, len(found.kinds))
    report.figure("1. dead letters of the other jobs", 0, found.others)
    report.figure("1. later events, parked", len(later), len(found.parked))
    report.require(len(found.parked) > 0, "nothing is parked")
    report.failures += [f"order {name} is not dead" for name in sorted(story.pickup.open_orders - found.dead)]
    report.failures += [f"order {name} is dead" for name in sorted(found.dead - story.pickup.open_orders)]
    report.failures += [f"order {name} is not parked" for name in sorted(later - found.parked)]
    report.failures += [f"order {name} is parked" for name in sorted(found.parked - later)]
    lacking = list(differences(found.accounts, story.purchases, without=found.left))
    report.figure("1. accounts that lack more or less than these", 0, len(lacking))
    report.failures += lacking


async def _mended_release(watch: Watch, options: Options) -> Place:
    release = BUGGY if options.sabotage is Spoilt.UNMENDED else MENDED
    watch.screen.say(
        f"2. release {MENDED}, mended, takes its place" + (f" (sabotage: {release})" if release == BUGGY else "")
    )
    watch.place = _release(watch.place, release)
    watch.workers.append(await start_worker(watch.place, "worker-3"))
    await until_ready(watch.workers[-1:], watch.http)
    return watch.place


async def _end_workers(watch: Watch, report: Report) -> None:
    """None runs any more, and the report says how each of them ended."""
    running = [worker for worker in watch.workers if worker.is_running]
    codes = await asyncio.gather(*(worker.stop() for worker in running))
    report.worker_exits |= {worker.name: code for worker, code in zip(running, codes, strict=True)}


async def _check(watch: Watch, report: Report, story: _Story, options: Options) -> None:
    if options.sabotage is not None and options.sabotage is not Spoilt.UNMENDED:
        how, dead = Sabotage(options.sabotage), story.pickup.open_orders
        # An order that was dead, where one of them can be spoilt so.
        victims = sorted(story.purchases, key=lambda purchase: purchase.order_id not in dead)
        report.sabotaged = await spoil(how, watch.place, victims, database=watch.database, http=watch.http)
        watch.screen.say(f"sabotage: {how} of order {report.sabotaged}")
    watch.screen.say("6. checking every account, document, row and letter against the source file")
    verdict = await checked(watch.place, "--recovered", str(OPEN_ORDERS), orders=options.orders)
    report.figures += [(what, expected, found) for what, expected, found in verdict["figures"]]
    report.failures += verdict["differences"]
    report.failures += [f"{name} ended with {code}" for name, code in report.worker_exits.items() if code]
