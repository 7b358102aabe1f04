"""What runs of jobs by the clock publish, while Kafka takes it and while it does not; what handlers can tell others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumers.failure import RetryPolicy
from tests.integration.clockwork import Check, Orders, Schedulers, Workshop, minutely
from tests.integration.test_relay import Log, MovableClock, read_partition
from tidegate import Context, handle
from tidegate.jobs.clockwork.records import RunTag
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import ClaimedRun, RunState
from tidegate.jobs.handlers import answer
from tidegate.jobs.relay import OutboxRelay
from tidegate.stack.names import StackAddresses
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.kafka import create_topics, open_writer
from tidegate_kernel.postgres import Pool
from tidegate_kernel.settings import KafkaSettings

pytestmark = pytest.mark.servers


@pytest.fixture
async def shop(pool: Pool) -> Workshop:
    made = Workshop(pool)
    await made.prepare(acme=10)
    return made


async def test_run_goes_on_without_kafka_up_to_a_bound_and_ends_when_it_is_back(
    shop: Workshop, stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """G5: with Kafka down orders are checked until so much waits for it that more would fill the database; the run is
    given back then, no attempt burnt. When Kafka is back each event is there once, in order."""
    settings, topic = KafkaSettings(bootstrap=stack.kafka_bootstrap), unique_name("checked")
    await create_topics(settings, {topic: 1})

    async def publish(order: str, ctx: Context[None]) -> None:
        ctx.publish(topic, {"order": order}, key="all")

    shop.on_order, shop.outbox_limit = publish, 5
    job = minutely(batch_size=4)
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    assert await work_off(shop.hands(job), run) is RunState.DUE
    waited = list(shop.handled)

    async with open_writer(settings) as writer:
        relay = OutboxRelay(shop.pool, writer, SystemClock())
        states = [RunState.DUE]
        while states[-1] is RunState.DUE:
            while await relay.relay_once():
                pass
            shop.clock.move(minutes=1)
            (run,) = await scheduler.claim(1)
            states.append(await work_off(shop.hands(job), run) or RunState.FAILED)
        while await relay.relay_once():
            pass

    assert waited == [f"o00{n}" for n in range(8)]
    assert (states[-1], run.attempt) == (RunState.DONE, 1)
    found = [record.value for record in await read_partition(settings, topic)]
    assert found == [b'{"order":"o%03d"}' % n for n in range(10)]


async def test_handler_can_tell_others_which_run_it_is_part_of(shop: Workshop) -> None:
    """G9, beyond our own tables: whoever is written to elsewhere can refuse the token of a holder that was replaced."""
    tags: list[RunTag | None] = []

    async def note(_: str, ctx: Context[None]) -> None:
        tags.append(ctx.run)

    shop.on_order = note
    job = minutely()
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    runs: list[ClaimedRun] = []
    for _ in range(2):
        shop.clock.move(minutes=1)
        await scheduler.make_runs()
        runs += await scheduler.claim(1)
        await work_off(shop.hands(job), runs[-1])

    assert {tags[0], tags[-1]} == {RunTag(run.id, run.token, run.correlation_id) for run in runs}
    assert runs[1].token > runs[0].token


async def test_calls_before_the_commit_hold_no_transaction_and_those_after_it_follow_a_commit(shop: Workshop) -> None:
    """As declared: `prepare` is called while nothing is locked; what is published leaves only what was committed."""
    held: list[int] = []

    async def prepare(_: Check, __: None) -> str:
        found = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        held.append(await shop.pool.fetchval(found))
        return "answer"

    async def check(command: Check, ctx: Context[None], prepared: Any) -> None:
        ctx.publish("calls", {"order": command.order, "said": prepared}, key=command.order)
        if command.order == "o003":
            raise RuntimeError("after the call was decided on")

    job = minutely(partial_failure="continue", retry=RetryPolicy(unexpected_attempts=1))
    scheduler = await Schedulers(shop.pool, shop.clock).start(job)
    shop.clock.move(minutes=1)
    await scheduler.make_runs()
    (run,) = await scheduler.claim(1)
    handlers = [answer(Orders, shop._orders), handle(Check, check, prepare=prepare)]
    assert await work_off(shop.hands(job, handlers=handlers), run) is RunState.DONE

    log = Log()
    await OutboxRelay(shop.pool, log, MovableClock()).relay_once()
    assert set(held) == {0}
    assert [record.key for record in log.written] == [b"o%03d" % n for n in range(10) if n != 3]
