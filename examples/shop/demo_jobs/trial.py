"""The story, top to bottom: three schedulers, five kinds of jobs, a kill in the middle; then everything is checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from examples.shop.catalogue.job import CUSTOMERS
from examples.shop.catalogue.provider_server import Company, serving
from examples.shop.demo.checking import checked
from examples.shop.demo.place import Place, fresh_place
from examples.shop.demo.produce import Sent, producing
from examples.shop.demo.purchases import read_purchases
from examples.shop.demo.sabotage import Sabotage, spoil
from examples.shop.demo.screen import screen
from examples.shop.demo.story import Post, Story
from examples.shop.demo.watch import Watch
from examples.shop.demo.workers import start_worker, tidegate, until_ready
from examples.shop.demo_dlq.commands import Console
from examples.shop.demo_jobs.app import EXPORTS, RECONCILIATION
from examples.shop.demo_jobs.broken import BrokenRun
from examples.shop.demo_jobs.nights import CHANGES, runs_of
from examples.shop.demo_jobs.planted import (
    BROKEN,
    CONTENDED,
    DISCS_A_BRAND,
    KEYS,
    LARGE,
    LONG,
    TOO_MUCH,
    YOUNG_A_SCOPE,
    Differences,
    close_books,
    company,
    plant_differences,
    plant_exports,
)
from examples.shop.demo_jobs.report import Report
from examples.shop.demo_jobs.runs import Runs
from examples.shop.demo_jobs.topics import read_topic
from examples.shop.scopes import SCOPES

APP = "examples.shop.demo_jobs.app:app"
LEAST_SHARE = 0.1
_SCHEDULERS = ("worker-1", "worker-2", "worker-3")
_SETTLE_SECONDS = 90.0
# So many runs, before one of the three is killed, that a tenth of them is no accident.
_RUNS_TO_SHARE, _MOST_RUNS_TO_SHARE = 150, 600
# Of twenty corrections these are done when the holder is killed.
_KILL_AFTER = 5
# A heartbeat is ten seconds: what a dead process has left is found within two. One more for a machine that is busy with
# four workers and four servers.
_FOUND_WITHIN_SECONDS = 30

_CORRECTIONS = "SELECT tenant, brand, customer_id, orders, cents FROM ledger_correction"
_REMOVED = (
    "SELECT coalesce(sum((parameters ->> 'items')::int), 0) FROM tidegate.audit WHERE action = 'maintenance:remove'"
)


@dataclass(frozen=True)
class Options:
    """`orders`: the first purchases of the source. `sabotage` spoils an effect before the check."""

    orders: int = 1200
    sabotage: Sabotage | None = None


@dataclass
class _Scene:
    """What the parts of the story share."""

    watch: Watch
    runs: Runs
    report: Report
    options: Options
    company: Company
    exports: Path
    expired: int = 0
    planted: Differences = field(default_factory=lambda: Differences({}))


async def run_trial(options: Options) -> tuple[Report, Place]:
    """Carries it out. What is wrong stands in the report; raises TrialFailed if it could not go on."""
    started = time.monotonic()
    async with AsyncExitStack() as opened:
        steps = Story(read_purchases(options.orders)).steps
        shown = opened.enter_context(screen(len(steps)))
        fresh, database = await opened.enter_async_context(fresh_place())
        http = await opened.enter_async_context(aiohttp.ClientSession())
        discs = company()
        place = await _set_up(fresh, await opened.enter_async_context(serving(discs)))
        shown.say(f"database, topics, index and table of trial {place.run} are there; so is the disc company")
        watch = Watch(place, database, http, shown, Sent())
        report = Report(place.run, options.orders)
        runs = Runs(database, Console(place, shown))
        scene = _Scene(watch, runs, report, options, discs, place.folder / "exports")
        try:
            await _tell(scene)
            await _end_workers(scene)
        finally:
            for worker in watch.workers:
                if worker.is_running:
                    worker.process.kill()
        await _check(scene)
    report.seconds = time.monotonic() - started
    return report, place


async def _set_up(fresh: Place, company_url: str) -> Place:
    keys = fresh.folder / "keys.json"
    keys.write_text(json.dumps(KEYS))
    own = {
        "TIDEGATE_APP": APP,
        "SHOP_EXPORTS": str(fresh.folder / "exports"),
        "SHOP_CATALOGUE_URL": company_url,
        "SHOP_CATALOGUE_KEYS_FILE": str(keys),
    }
    place = replace(fresh, environment={**fresh.environment, **own})
    published = [f"{place.prefix}shop.{name}:3" for name in ("ledger-corrections", "discs")]
    also = [word for name in published for word in ("--also", name)]
    await asyncio.gather(tidegate(place, "migrate"), tidegate(place, "topics", "create", *also))
    token = (await tidegate(place, "tokens", "create", "demo", "--bootstrap")).strip()
    place.write_env_file(token=token)
    return replace(place, environment={**place.environment, "TIDEGATE_TOKEN": token})


async def _tell(scene: _Scene) -> None:
    scene.expired = await plant_exports(scene.watch.database, scene.exports)
    scene.watch.workers += await asyncio.gather(*(start_worker(scene.watch.place, name) for name in _SCHEDULERS))
    await asyncio.gather(_nights(scene), until_ready(scene.watch.workers, scene.watch.http))
    ready_at = await scene.watch.database.fetchval("SELECT now()")
    scene.watch.screen.say("1. three workers are ready: consumers, projections, and schedulers")
    await _consume(scene)
    await close_books(scene.watch.database, read_purchases(scene.options.orders))
    scene.planted = await plant_differences(scene.watch.database)
    scene.watch.screen.say(f"2. {len(scene.planted.by_account)} accounts of the ledger are wrong now")
    failed, _ = await asyncio.gather(BrokenRun(scene.runs, scene.company, scene.report).tell(), _share(scene, ready_at))
    scene.watch.screen.say(f"4. {failed}; the next went on there")
    await _reconcile(scene)
    await scene.runs.until(lambda: _is_swept(scene), what="exports and catalogue to be as they must be")


async def _nights(scene: _Scene) -> None:
    """Both clock changes, by a clock that is moved by hand."""
    for change in CHANGES:
        found = await runs_of(scene.watch.place, change)
        for due in change.due:
            what = f"runs of the {change.name} night, due {due:%m-%d %H:%M}Z"
            scene.report.figure(what, len(SCOPES), found.get(due, 0))
        others = sum(count for due, count in found.items() if due not in change.due)
        scene.report.figure(f"runs of the {change.name} night at any other time", 0, others)


async def _consume(scene: _Scene) -> None:
    """ConsumerJob, ProjectionJobs and FoldJob settle what the order service sends: with repeats and poison."""
    watch, steps = scene.watch, Story(read_purchases(scene.options.orders)).steps
    post = Post(datetime.now(UTC))
    async with producing(watch.place.kafka, watch.place.topic, post) as producer, asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(watch.run(), name="watch")
        await producer.send(steps, per_second=3000, sent=watch.sent)
        await watch.until_settled(len(steps), seconds=_SETTLE_SECONDS)
        looking.cancel()


async def _share(scene: _Scene, since: Any) -> None:
    """Each of the three has claimed a part of what came due."""
    workers = scene.watch.workers

    def sharing(claims: Mapping[str, int]) -> int:
        return sum(count >= LEAST_SHARE * sum(claims.values()) for count in claims.values())

    async def are_enough() -> bool:
        claims = scene.report.claims = await scene.runs.claims(workers, since)
        total = sum(claims.values())
        # A busy machine may hold one of them up for a while; for so many runs it does not.
        return total >= _RUNS_TO_SHARE and (sharing(claims) == len(workers) or total >= _MOST_RUNS_TO_SHARE)

    await scene.runs.until(are_enough, what=f"{_RUNS_TO_SHARE} runs to be claimed")
    claims = scene.report.claims
    scene.report.figure("schedulers with a tenth of the runs or more", 3, sharing(claims))
    scene.watch.screen.say(f"3. runs claimed so far: {claims}")


async def _reconcile(scene: _Scene) -> None:
    """ScheduledJob: asked for twice, contended, killed in the middle, and with an item that is too much."""
    runs, say = scene.runs, scene.watch.screen.say
    await runs.held_back("pause")
    first, again, *meeting = await asyncio.gather(
        runs.ask(LONG, key="night-1"), runs.ask(LONG, key="night-1"), runs.ask(CONTENDED), runs.ask(CONTENDED)
    )
    await runs.held_back("resume")
    scene.report.figure("runs of a trigger that came twice", 1, len({first["run"], again["run"]}))
    killed = await runs.kill_holder(first["run"], scene.watch.workers, after=_KILL_AFTER)
    scene.report.killed = killed.name
    say(f"5. killed {killed.name} (SIGKILL), which had the lease of run {first['run']}")
    scene.watch.workers.append(await start_worker(scene.watch.place, "worker-4"))
    await _decide(scene)
    found_after = scene.report.found_after_seconds = await runs.found_after(first["run"])
    late = f"killed runs found later than after {_FOUND_WITHIN_SECONDS} s"
    scene.report.figure(late, 0, int(found_after > _FOUND_WITHIN_SECONDS))
    say(f"7. run {first['run']} was found and gone on with after {found_after:.1f} s")
    await runs.until_idle()
    states = await runs.states(first["run"])
    scene.report.figure("killed runs that are stalled, and gone on with", "stalled, done", ", ".join(states))
    ended = [(await runs.states(run["run"]))[-1] for run in meeting]
    scene.report.figure("runs that met at one scope, and both ended", 2, ended.count("done"))
    have_met = await runs.one_waited(*(run["run"] for run in meeting))
    scene.report.figure("of these one that waited for the other", 1, int(have_met))


async def _decide(scene: _Scene) -> None:
    """What was too much is a dead letter; somebody looks, lets a run correct it, and closes the letter."""
    runs, typed = scene.runs, scene.runs.console.type
    await runs.ask(LARGE)
    await runs.until(lambda: _has_letters(scene), what="the large difference to be quarantined")
    (item,) = (await typed("jobs", "items", RECONCILIATION, "--json")).as_json
    scene.watch.screen.say(f"6. {item['error_message']}: {item['replay_instruction']}")
    large = await runs.ask(LARGE, cents=2 * TOO_MUCH)
    await runs.until(lambda: _is_done(scene, large["run"]), what="the large difference to be corrected")
    words = ("--tenant", LARGE.tenant, "--brand", LARGE.brand, "--letter", item["letter"])
    closed = await typed("jobs", "discard", RECONCILIATION, *words, "--reason", "corrected by a run", "--yes")
    scene.report.require(closed.code == 0, f"the letter was not closed: {closed.said}")


async def _has_letters(scene: _Scene) -> bool:
    return bool(await scene.watch.database.fetchval("SELECT count(*) FROM tidegate.job_item WHERE letter IS NOT NULL"))


async def _is_done(scene: _Scene, run: int) -> bool:
    return bool((await scene.runs.of(run))["state"] == "done")


async def _is_swept(scene: _Scene) -> bool:
    """MaintenanceJob and ProviderSyncJob have come to their ends."""
    database = scene.watch.database
    exports = await database.fetchval("SELECT count(*) FROM export")
    discs = await database.fetchval("SELECT count(*) FROM disc")
    return bool(exports == YOUNG_A_SCOPE * len(SCOPES) and discs == DISCS_A_BRAND * len(CUSTOMERS))


async def _end_workers(scene: _Scene) -> None:
    """None runs any more, and the report says how each of them ended."""
    running = [worker for worker in scene.watch.workers if worker.is_running]
    codes = await asyncio.gather(*(worker.stop() for worker in running))
    scene.report.worker_exits = {worker.name: code for worker, code in zip(running, codes, strict=True)}
    scene.watch.screen.say(f"stopped: {scene.report.worker_exits}")


async def _check(scene: _Scene) -> None:
    report, watch = scene.report, scene.watch
    watch.screen.say("8. checking runs, corrections, exports, discs, topics, and every order against the source file")
    report.figure("runs of one scope side by side", 0, await scene.runs.side_by_side())
    report.figure("occasions with more than one run", 0, await scene.runs.double())
    await _check_corrections(scene)
    await _check_exports(scene)
    await _check_discs(scene)
    if scene.options.sabotage is not None:
        purchases = read_purchases(scene.options.orders)
        report.sabotaged = await spoil(
            scene.options.sabotage, watch.place, purchases, database=watch.database, http=watch.http
        )
        watch.screen.say(f"sabotage: {scene.options.sabotage} of order {report.sabotaged}")
    verdict = await checked(watch.place, orders=scene.options.orders)
    report.figures += [(what, expected, found) for what, expected, found in verdict["figures"]]
    report.failures += verdict["differences"]
    report.failures += [f"{name} ended with {code}" for name, code in report.worker_exits.items() if code]


async def _check_corrections(scene: _Scene) -> None:
    report, place = scene.report, scene.watch.place
    rows = [tuple(row) for row in await scene.watch.database.fetch(_CORRECTIONS)]
    wanted = sorted((*account, *by) for account, by in scene.planted.by_account.items())
    report.figure("differences planted and corrected", len(wanted), len(rows))
    report.figure("cents moved", scene.planted.cents, sum(row[4] for row in rows))
    surplus, missing = Counter(rows) - Counter(wanted), Counter(wanted) - Counter(rows)
    report.failures += [f"correction {row} was not planted, or came twice" for row in surplus]
    report.failures += [f"difference {row} was not corrected" for row in missing]
    told = await read_topic(place.kafka, f"{place.prefix}shop.ledger-corrections")
    report.figure("corrections published", len(wanted), len({each.headers["ce_id"] for each in told}))
    report.figure("cents in what was published", scene.planted.cents, sum(_cents(each.value) for each in told))
    letters = await read_topic(place.kafka, f"{place.prefix}shop.{RECONCILIATION}.dlq")
    report.figure("records of the quarantined item's letter", 2, len(letters))
    report.figure("letters", 1, len({each.headers["tg-dlq-id"] for each in letters}))


def _cents(value: bytes | None) -> int:
    return int(json.loads(value or b"{}")["cents"])


async def _check_exports(scene: _Scene) -> None:
    report, database = scene.report, scene.watch.database
    young = YOUNG_A_SCOPE * len(SCOPES)
    report.figure("exports left: rows", young, await database.fetchval("SELECT count(*) FROM export"))
    report.figure("exports left: files", young, len(list(scene.exports.glob("*.csv"))))
    report.figure(f"removals of {EXPORTS} in the audit", scene.expired, await database.fetchval(_REMOVED))


async def _check_discs(scene: _Scene) -> None:
    report, place = scene.report, scene.watch.place
    wanted = DISCS_A_BRAND * len(CUSTOMERS)
    report.figure("discs of three customers", wanted, await scene.watch.database.fetchval("SELECT count(*) FROM disc"))
    told = await read_topic(place.kafka, f"{place.prefix}shop.discs")
    names = [(each.headers["ce_tenantid"], each.headers["ce_brandid"], each.key) for each in told]
    report.figure("new prices published", wanted, len(names))
    report.figure("discs whose price was published", wanted, len(set(names)))
    again = Counter(name for name in names if name[:2] == (BROKEN.tenant, BROKEN.brand))
    once = sum(count == 1 for count in again.values())
    report.figure("prices of the customer with the failed run, published once", DISCS_A_BRAND, once)
    report.figure("refusals of the disc company that nobody has met", 0, len(scene.company.faults))
