"""Letters of items beside those of records: one list, the same states, limit, retention and erasure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from dlq.forgetting.upkeep import LetterUpkeep
from dlq.runs import RunKind
from dlq.states import LetterKind, LetterState
from tests.everywhere import columns_with
from tests.integration.clockwork import ACME, ZEBRA, Check, Orders, Schedulers, Workshop, forget_lease
from tests.integration.quarantined_items import (
    ALICE,
    BOSS,
    TOPIC,
    Closed,
    asked,
    audited,
    failed,
    letters,
    letters_leave,
    lost,
    planned,
    quarantining,
    work_next,
    worked,
)
from tidegate import App, answer, handle
from tidegate.console.erasing import JobErased, Subject, erase_subject, plan_erasure
from tidegate.console.item_plan import choose_items, plan_items
from tidegate.console.letters import (
    ItemDetails,
    LetterFilter,
    ListedLetter,
    find_letter,
    letter_stats,
    list_letters,
    read_letter,
)
from tidegate.console.replay_hazards import HazardCode
from tidegate.jobs.clockwork.declaration import ScheduledJob
from tidegate.jobs.clockwork.quarantine import ItemChoice, discard_items, refuse_items
from tidegate.jobs.clockwork.requests import cancel_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Conflict, Denied, Misconfigured, Reason
from tidegate_kernel.event import Scope
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Connection, Pool
from tidegate_kernel.queries import load_queries

pytestmark = pytest.mark.servers

JANE = "jane@example.org"
ANY = tuple(LetterState)


@pytest.fixture
async def shop(pool: Pool) -> Workshop:
    made = Workshop(pool, on_order=Closed("o001"))
    await made.prepare(acme=3, zebra=2)
    return made


async def listed(shop: Workshop, **wanted: Any) -> list[ListedLetter]:
    async with shop.pool.acquire() as connection:
        return list((await list_letters(connection, "tests", LetterFilter(**wanted))).letters)


async def state(shop: Workshop) -> str:
    (letter,) = await listed(shop, states=ANY)
    return letter.state


async def put_record(pool: Pool, *, seconds_ago: int) -> UUID:
    """A letter of a record of job `ledger`."""
    letter: UUID = await pool.fetchval(
        """
        WITH j AS (INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('tests', 'ledger', 'v1') RETURNING id)
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", key, value, reason, error_class, error_message, fingerprint,
            attempts, first_failed_at, last_failed_at
        )
        SELECT
            gen_random_uuid(), j.id, 'orders', gen_random_uuid(), 0, 7, 'k', 'v', 'rejected', 'Rejected', 'no', 'f', 1,
            t.at, t.at
        FROM j CROSS JOIN (SELECT now() - make_interval(secs => $1) AS at) AS t
        RETURNING id
        """,
        seconds_ago,
    )
    return letter


async def test_items_stand_in_the_list_of_letters_beside_records(shop: Workshop) -> None:
    """Whoever is on call looks in one place: what it does not show is believed not to be there."""
    await failed(shop, quarantining())
    record = await put_record(shop.pool, seconds_ago=60)
    (item,) = await lost(shop)

    first, second = await listed(shop)
    async with shop.pool.acquire() as connection:
        page = await list_letters(connection, "tests", LetterFilter(), limit=1)
        rest = await list_letters(connection, "tests", LetterFilter(), after=page.after, limit=1)
        stats = await letter_stats(connection, "tests", LetterFilter())
        details = await find_letter(connection, "tests", first.id)
        with pytest.raises(Misconfigured, match="is an item of job 'check': it holds no payload"):
            await read_letter(connection, "tests", first.id)

    assert [(each.kind, each.id) for each in (first, second)] == [
        (LetterKind.ITEM, item.letter),
        (LetterKind.RECORD, record),
    ]
    assert (first.job, first.item, first.run, first.state) == ("check", item.key, item.run, "dead")
    assert (first.reason, first.error_message, first.tenant) == ("rejected", "closed account", "acme")
    assert first.next_command == f"tidegate dlq replay --letter {item.letter}"
    assert [*page.letters, *rest.letters] == [first, second]
    assert rest.after is None
    assert {(each.kind, each.job, each.letters, each.sample) for each in stats.groups} == {
        (LetterKind.ITEM, "check", 1, item.letter),
        (LetterKind.RECORD, "ledger", 1, record),
    }
    assert isinstance(details, ItemDetails)
    assert (details.stack, details.scheduled_at) == (item.stack, item.scheduled_at)


@pytest.mark.parametrize(
    "wanted, others",
    [
        ({"jobs": ["check"]}, {"jobs": ["ledger"]}),
        ({"reason": Reason.REJECTED}, {"reason": Reason.HANDLER_FAILED}),
        ({"tenant": "acme"}, {"tenant": "zebra"}),
        ({"brand": ""}, {"brand": "north"}),
        ({"error": "CLOSED acc"}, {"error": "open"}),
        ({"key": b"o001"}, {"key": b"o002"}),
        ({"key": b"2026-05-01T12:01:00+00:00 o001"}, {"key": b"\xff"}),
        ({"states": [LetterState.DEAD]}, {"states": [LetterState.QUARANTINED]}),
        ({}, {"event_type": "order.placed"}),
        ({}, {"fingerprint": "f"}),
    ],
)
async def test_filters_of_letters_hold_for_items(
    shop: Workshop, wanted: dict[str, Any], others: dict[str, Any]
) -> None:
    """A filter that is passed over in silence shows, and replays, what nobody asked for."""
    job = quarantining()
    await failed(shop, job)
    await put_record(shop.pool, seconds_ago=60)

    for filters, found in ((wanted, 1), (others, 0)):
        assert sum(each.kind is LetterKind.ITEM for each in await listed(shop, **filters)) == found
        async with shop.pool.acquire() as connection:
            stats = await letter_stats(connection, "tests", LetterFilter(**filters))
            chosen = await choose_items(connection, "tests", job, LetterFilter(**filters), is_forced=False)
        assert sum(each.letters for each in stats.groups if each.kind is LetterKind.ITEM) == found
        if "jobs" not in filters:  # whose they are is known by then
            assert sum(len(each.letters) for each in chosen.choices) == found


async def test_letter_of_an_item_goes_through_the_states_of_letters(shop: Workshop) -> None:
    """Dead, replaying, dead again, resolved: by the same words, so that one filter finds both kinds."""
    closed = Closed("o001")
    shop.on_order = closed
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    seen = [await state(shop)]
    for is_open in (False, True):
        await asked(shop, ItemChoice(job=job, scope=ACME))
        seen.append(await state(shop))
        closed.orders = set() if is_open else {"o001"}
        await work_next(shop, job, scheduler)
        seen.append(await state(shop))

    assert seen == ["dead", "replaying", "dead", "replaying", "resolved"]
    (letter,) = await listed(shop, states=ANY)
    assert (letter.error_message, letter.occurrences) == ("closed account", 2), "why it failed is told to the end"


async def test_item_that_failed_in_too_many_replays_needs_force(shop: Workshop) -> None:
    """The limit of records' letters, by the same setting and flag: what fails again and again is looked at first."""
    shop.most_replays = 2
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    choice = ItemChoice(job=job, scope=ACME)
    codes = []
    for _ in range(2):
        codes.append({hazard.code for hazard in (await planned(shop, choice, most_replays=2)).hazards})
        await asked(shop, choice)
        await work_next(shop, job, scheduler)
    (item,) = await lost(shop)
    named = ItemChoice(job=job, scope=ACME, keys=[item.key])

    plan = await planned(shop, choice)
    with pytest.raises(Conflict, match="quarantined after too many failed replays; --force includes them"):
        await asked(shop, named)
    assert (await asked(shop, choice)).items == 0
    assert codes == [set(), {HazardCode.REPLAYED_BEFORE, HazardCode.LAST_TRY}]
    assert (plan.items, [hazard.code for hazard in plan.hazards]) == (0, [HazardCode.QUARANTINED])
    assert "1 letter is left out: quarantined after too many failed replays" in plan.hazards[0].sentence
    assert (await state(shop), item.is_quarantined) == ("quarantined", True)

    shop.on_order = None
    forced = ItemChoice(job=job, scope=ACME, letters=named.letters, keys=named.keys, is_forced=True)
    assert (await planned(shop, forced)).items == 1
    await asked(shop, forced)
    await work_next(shop, job, scheduler)
    assert await state(shop) == "resolved"
    assert [row[5] for row in await audited(shop.pool)] == ["done", "done", "failed", "done", "done"]


async def test_item_whose_replay_did_not_come_to_it_is_dead_again(shop: Workshop) -> None:
    """Cancelled before it began, or failed as a whole: nobody does it, so it must not look as if somebody did."""
    job = quarantining(run_attempts=1)
    scheduler, _ = await failed(shop, job)
    cancelled = await asked(shop, ItemChoice(job=job, scope=ACME))
    await cancel_run(shop.pool, ALICE, "tests", cancelled.runs[0], reason="the wrong one")
    after_cancel = await state(shop)

    await asked(shop, ItemChoice(job=job, scope=ACME))
    (run,) = await scheduler.claim(1)
    await shop.pool.execute("ALTER TABLE ord RENAME TO away")
    assert await work_off(shop.hands(job), run) is RunState.FAILED
    after_failure = await state(shop)

    await shop.pool.execute("ALTER TABLE away RENAME TO ord")
    await asked(shop, ItemChoice(job=job, scope=ACME))
    (run,) = await scheduler.claim(1)
    await forget_lease(shop.pool)
    await scheduler.end_stalled(await scheduler.look())
    assert (after_cancel, after_failure, await state(shop)) == ("dead", "dead", "dead")
    (item,) = await lost(shop)
    assert (item.outcome, item.replays, item.replay) == ("quarantined", 0, None), "an asking is no failed replay"


async def test_plan_registers_no_job(shop: Workshop) -> None:
    """A dry look changes nothing, also where the job never ran: a row of it would count as one that has started."""
    job = quarantining()

    plan = await planned(shop, ItemChoice(job=job, scope=ACME))
    with pytest.raises(Misconfigured, match="has no failed item"):
        await planned(shop, ItemChoice(job=job, scope=ACME, keys=["o001"]))
    with pytest.raises(Misconfigured, match="never started here"):
        async with shop.pool.acquire() as connection:
            await choose_items(connection, "tests", job, LetterFilter(), is_forced=False)
    with pytest.raises(Misconfigured, match="has no failed item"):
        await asked(shop, ItemChoice(job=job, scope=ACME, keys=["o001"]))

    assert plan.items == 0
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.job") == 0


async def test_letters_are_chosen_over_scopes_and_each_scope_is_a_deed(shop: Workshop) -> None:
    """`dlq replay --job` names no tenant: whose they are is found, asked permission for, and audited, each."""
    job = quarantining(scopes=[ACME, ZEBRA])
    shop.on_order = Closed("o000")
    await both_failed(shop, job)
    ids = [each.id for each in await listed(shop)]
    of_zebra = Actor("zoe", Role.OPERATOR, tenants=frozenset({"zebra"}))

    async with shop.pool.acquire() as connection:
        by_filter = await choose_items(connection, "tests", job, LetterFilter(), is_forced=False)
        by_id = await choose_items(connection, "tests", job, ids, is_forced=False)
        plan = await plan_items(connection, "tests", by_id, job="check", kind=RunKind.REPLAY)
        with pytest.raises(Misconfigured, match="has no letter"):
            await choose_items(connection, "tests", job, [UUID(int=7)], is_forced=False)
    with pytest.raises(Denied):
        await refuse_items(shop.pool, of_zebra, "tests", RunKind.REPLAY, by_id.choices, reason="mended")
    for choice in by_filter.choices:
        await asked(shop, choice)
    async with shop.pool.acquire() as connection:
        taken = await choose_items(connection, "tests", job, ids, is_forced=False)
        told = await plan_items(connection, "tests", taken, job="check", kind=RunKind.REPLAY)

    assert {choice.scope for choice in by_filter.choices} == {choice.scope for choice in by_id.choices} == {ACME, ZEBRA}
    assert (plan.items, plan.occasions) == (2, 1)
    assert (told.items, [(hazard.code, hazard.count) for hazard in told.hazards]) == (0, [(HazardCode.REPLAYING, 2)])
    assert [(row[4], row[5]) for row in await audited(shop.pool)] == [
        ("acme", "denied"),
        ("acme", "done"),
        ("zebra", "done"),
    ]


async def both_failed(shop: Workshop, job: ScheduledJob) -> None:
    """As `failed`, for both tenants."""
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    for run in await scheduler.claim(2):
        assert await work_off(shop.hands(job), run) is RunState.DONE


async def test_more_items_than_one_person_may_decide_about_are_refused(shop: Workshop) -> None:
    """TIDEGATE_REPLAY_APPROVAL_ABOVE: a run over items waits for no second person, so there is none of so many."""
    shop.on_order = Closed("o000", "o001")
    job = quarantining()
    await failed(shop, job)

    with pytest.raises(Denied, match="2 items are more than 1"):
        await discard_items(
            shop.pool, BOSS, "tests", ItemChoice(job=job, scope=ACME), reason="x", topic=TOPIC, approval_above=1
        )
    assert [each.outcome for each in await lost(shop)] == ["quarantined", "quarantined"]


async def test_letters_of_items_are_counted_as_letters(shop: Workshop) -> None:
    """The alerts on letters that grow, or that nobody looks at, read these numbers: items must be in them."""
    job = quarantining()
    scheduler, _ = await failed(shop, job)
    await put_record(shop.pool, seconds_ago=60)
    await shop.pool.execute(
        "UPDATE tidegate.job_item SET first_failed_at = now() - interval '2 hours' WHERE letter IS NOT NULL"
    )
    metrics = Metrics()
    await LetterUpkeep(shop.pool, SystemClock(), service="tests", kept=None, metrics=metrics).measure()
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)
    shop.on_order = None
    await asked(shop, ItemChoice(job=job, scope=ACME))
    await work_next(shop, job, scheduler)
    after = Metrics()
    await LetterUpkeep(shop.pool, SystemClock(), service="tests", kept=None, metrics=after).measure()

    counted = shop.metrics.dead_letters.labels("check", "rejected")._value.get()
    replayed = [shop.metrics.replayed_letters.labels("check", each)._value.get() for each in ("failed", "resolved")]
    assert [metrics.unresolved_letters.labels(job)._value.get() for job in ("check", "ledger")] == [1, 1]
    assert metrics.oldest_letter.labels("check")._value.get() == pytest.approx(7200, abs=600)
    assert (counted, replayed) == (1, [1, 1]), "what fails again is no new letter"
    assert after.unresolved_letters.labels("check")._value.get() == 0


async def test_settled_letters_of_items_leave_with_the_others_and_no_undecided_one_does(shop: Workshop) -> None:
    """One policy (TIDEGATE_LETTER_RETENTION); that the item was done is remembered for as long as its job says."""
    closed = Closed("o000", "o001", "o002")
    shop.on_order = closed
    job = quarantining(idempotency_key=lambda order, _: f"pay {order}")
    scheduler, _ = await failed(shop, job)
    await discard_items(
        shop.pool, BOSS, "tests", ItemChoice(job=job, scope=ACME, keys=["pay o000"]), reason="x", topic=TOPIC
    )
    closed.orders.clear()
    await asked(shop, ItemChoice(job=job, scope=ACME, keys=["pay o001"]))
    await work_next(shop, job, scheduler)

    await shop.pool.execute("UPDATE tidegate.job_item SET decided_at = now() - interval '89 days'")
    await letters_leave(shop.pool)
    early = sorted(each.state for each in await listed(shop, states=ANY))
    await shop.pool.execute("UPDATE tidegate.job_item SET decided_at = now() - interval '91 days'")
    await letters_leave(shop.pool)

    assert early == ["dead", "discarded", "resolved"]
    assert [(each.state, each.item) for each in await listed(shop, states=ANY)] == [("dead", "pay o002")]
    assert await shop.items() == [("pay o000", "discarded"), ("pay o001", "done"), ("pay o002", "quarantined")]
    kept = await shop.pool.fetch("SELECT error_message, stack FROM tidegate.job_item WHERE outcome <> 'quarantined'")
    assert {tuple(row) for row in kept} == {(None, None)}


def app_of(shop: Workshop, job: ScheduledJob) -> App:
    handlers = [answer(Orders, shop._orders), handle(Check, shop._check)]
    return App(service="tests", owner="tests", jobs=[], clock_jobs=[job], handlers=handlers)


async def erased(shop: Workshop, job: ScheduledJob, subject: Subject) -> JobErased:
    app = app_of(shop, job)
    async with shop.pool.acquire() as connection:
        plan = await plan_erasure(connection, app, ["check"], subject)
        (done,) = await erase_subject(connection, BOSS, app, plan, reason="ticket 4711")
        assert (await plan_erasure(connection, app, ["check"], subject)).found == 0
    return done


@pytest.mark.parametrize("way", ["place", "key", "letter"])
async def test_nothing_of_a_subject_is_left_in_an_items_letter_and_no_run_does_it(shop: Workshop, way: str) -> None:
    """Every column of every table is searched; and what was erased must not come back with the next run."""
    await shop.pool.execute("UPDATE ord SET id = $1 WHERE tenant = 'acme' AND id = 'o001'", JANE)
    shop.on_order = Closed(JANE, "o000")
    job = quarantining(idempotency_key=lambda order, _: f"pay {order}", batch_size=1)
    scheduler, _ = await failed(shop, job)
    await shop.pool.execute(
        "UPDATE tidegate.job_item SET error_message = $1, stack = $1 WHERE place = $2", f"KeyError: {JANE}", JANE
    )
    item = next(each for each in await lost(shop) if JANE in each.key)
    subjects = {
        "place": Subject(key=JANE.encode()),
        "key": Subject(key=f"pay {JANE}".encode()),
        "letter": Subject(letter=item.letter),
    }
    columns = ("error_message", "key", "page_after", "place", "stack")
    everywhere = [*(f"job_item.{name}" for name in columns), "outbox.header_values", "outbox.key"]
    assert await columns_with(shop.pool, JANE) == everywhere, "the search finds what is there"

    done = await erased(shop, job, subjects[way])
    shop.on_order = None
    await worked(shop, job, scheduler)

    assert await columns_with(shop.pool, JANE) == []
    assert (done.erased.items, done.erased.copies) == (1, 1)
    assert await shop.effects() == ["acme/o002"], "no run does it again"
    assert {each.state: each.item for each in await listed(shop, states=ANY)}["dead"] == "pay o000"
    assert [letter.get("state") for letter in await letters(shop.pool)] == [None, "discarded"]
    (row,) = await shop.pool.fetch("SELECT actor, action, outcome, parameters FROM tidegate.audit")
    assert (row["actor"], row["action"], row["outcome"]) == ("boss", "dlq:erase", "done")
    assert JANE not in row["parameters"]


async def test_erasure_leaves_the_items_of_others_alone(shop: Workshop) -> None:
    """One subject, not a neighbour whose key begins in the same way."""
    shop.on_order = Closed("o000", "o001")
    job = quarantining()
    await failed(shop, job)

    await erased(shop, job, Subject(key=b"o000"))

    assert [each.key[-4:] for each in await lost(shop)] == ["o001"]


@pytest.mark.parametrize("name", ["\udcff", "a\0b"])
def test_names_that_are_no_text_are_refused_before_any_server_is_asked(name: str) -> None:
    """Bytes of a command line that are no UTF-8: a clear refusal, and not what an encoder says."""
    fields: dict[str, Any] = {"job": quarantining(), "scope": ACME}
    for wrong in ({"keys": [name]}, {"scope": Scope(name)}, {"scope": Scope("acme", name)}):
        with pytest.raises(Misconfigured, match="is named by UTF-8"):
            ItemChoice(**fields | wrong)


async def test_page_of_item_letters_reads_no_more_than_it_shows(shop: Workshop) -> None:
    """A job that does a million items a night has a page of its letters as quickly as one that does fifty."""
    await failed(shop, quarantining())
    await shop.pool.execute(
        """
        INSERT INTO tidegate.job_item (job, tenant, key, run, outcome, letter, first_failed_at, last_failed_at)
        SELECT
            i.job, 'acme', 'x' || n, 1, CASE WHEN n % 10 = 0 THEN 'quarantined' ELSE 'done' END,
            CASE WHEN n % 10 = 0 THEN gen_random_uuid() END, now() - n * interval '1 second',
            now() - n * interval '1 second'
        FROM tidegate.job_item AS i CROSS JOIN generate_series(1, 20000) AS n
        WHERE i.letter IS NOT NULL
        """
    )
    async with shop.pool.acquire() as connection:
        await connection.execute("ANALYZE tidegate.job_item")
        number = await connection.fetchval("SELECT id FROM tidegate.job")
        page = [[number], ["dead"], *[None] * 11, 51]
        letter = await connection.fetchval("SELECT letter FROM tidegate.job_item WHERE key = 'x500'")

        read = await items_read(connection, "letters_page", page)
        of_one = await items_read(connection, "item_letter_details", ["tests", letter])

    assert read <= 2 * 51, "of 2,000 letters and 18,000 items that are none"
    assert of_one <= 2


async def items_read(connection: Connection, query: str, arguments: Sequence[Any]) -> float:
    """How many rows of items the query looks at."""
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        text = load_queries("tidegate.console")[query]
        plan = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *arguments))
    return sum(_rows_of(node) for node in _below(plan[0]["Plan"]) if node.get("Relation Name") == "job_item")


def _rows_of(node: dict[str, Any]) -> float:
    passed_over = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + passed_over) * node["Actual Loops"])


def _below(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _below(part)
