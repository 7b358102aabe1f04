"""A job's loop on real Kafka and Postgres: joining, leaving, crashing, taking over."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import DeleteGroupsRequest

from tests.integration.live import Note, Service, has_settled, note, running, until
from tidegate import Context
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import join_group
from tidegate_kernel.metrics import Metrics


async def test_every_event_is_applied_and_the_group_is_told(service: Service) -> None:
    """The plain road: all events of all partitions, once, and the group's offsets follow the positions."""
    await service.produce(range(500))

    async with running(await service.loop()):
        await until(lambda: has_settled(service, 500))

    assert await service.effects() == list(range(500))
    assert await service.committed() == 500


async def test_crash_and_restart_apply_nothing_twice(service: Service) -> None:
    """Cases 19 and 21: a worker that vanishes in the middle leaves whole batches only; its successor takes the rest."""
    await service.produce(range(2000))
    first = await service.loop(batch_size=50)
    task = asyncio.create_task(first.run())
    await until(lambda: has_settled(service, 300))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left_at = await service.settled()
    assert left_at < 2000, "the crash has to hit unfinished work"
    assert await service.committed() <= left_at

    async with running(await service.loop("successor")):
        await until(lambda: has_settled(service, 2000))

    assert await service.effects() == list(range(2000))


async def test_events_produced_again_at_new_offsets_are_dropped(service: Service) -> None:
    """G2: a producer that repeats itself makes duplicates at new offsets; their ids are known."""
    await service.produce(range(100))
    await service.produce(range(100))

    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 200))

    assert await service.effects() == list(range(100))
    assert loop.meter.tally.duplicates == 100


async def test_stop_finishes_what_is_in_hand_and_commits_no_more(service: Service) -> None:
    """Case 22: SIGTERM while a handler runs; the batch settles, and the committed offset is exactly what settled."""
    at_work = asyncio.Event()

    async def slow(command: Note, ctx: Context[None]) -> None:
        at_work.set()
        await asyncio.sleep(0.3)
        await note(command, ctx)

    service.handler = slow
    await service.produce(range(40))
    async with running(await service.loop(batch_size=1)):
        await at_work.wait()

    applied = await service.effects()
    assert 0 < len(applied) < 40
    assert await service.settled() == len(applied)
    assert await service.committed() == len(applied)


async def test_unfinished_message_is_not_committed_on_stop(service: Service) -> None:
    """Case 22: a handler that outlives the drain time-out is cut off; its message stays uncommitted and comes again."""
    at_work = asyncio.Event()

    async def hang(command: Note, ctx: Context[None]) -> None:
        await note(command, ctx)
        at_work.set()
        await asyncio.sleep(60)

    service.handler, service.drain_timeout = hang, timedelta(seconds=0.3)
    await service.produce(range(1))
    async with running(await service.loop(handler_timeout=timedelta(seconds=50))):
        await at_work.wait()
    assert await service.settled() == 0
    assert await service.committed() == 0
    assert await service.effects() == []

    service.handler = note
    async with running(await service.loop("successor")):
        await until(lambda: has_settled(service, 1))
    assert await service.effects() == [0]


async def test_second_member_shares_the_work_and_nothing_is_doubled(service: Service) -> None:
    """Case 14: a rebalance in the middle of the work. Both members apply events, each event once, and nothing that was
    finished is even delivered again: the new owner begins where the old one's position stands."""
    await service.produce(range(1000))
    first = await service.loop("first", batch_size=20)
    async with running(first):
        await until(lambda: has_settled(service, 60))
        second = await service.loop("second", batch_size=20)
        async with running(second):
            await until(lambda: len(second.holdings.owned) == 2)
            await service.produce(range(1000, 2000))
            await until(lambda: has_settled(service, 2000))

    assert await service.effects() == list(range(2000))
    assert second.meter.tally.applied > 0
    assert first.meter.tally.duplicates == second.meter.tally.duplicates == 0
    assert await service.committed() == 2000


async def test_revoked_partition_has_no_lag_series(service: Service) -> None:
    """Case 103: what another member owns now is that member's to report; here its series is gone, not 0 or -1."""
    await service.produce(range(10))
    first = await service.loop("first")
    async with running(first):
        await until(lambda: len(first.holdings.owned) == 4)
        await until(lambda: len(_lag_partitions(service.metrics[0])) == 4)
        second = await service.loop("second")
        async with running(second):
            await until(lambda: [len(loop.holdings.owned) for loop in (first, second)] == [2, 2])
            await until(lambda: [len(_lag_partitions(metrics)) for metrics in service.metrics] == [2, 2])

            mine, theirs = map(_lag_partitions, service.metrics)

            assert mine == {str(partition) for _, partition in first.holdings.owned}
            assert mine | theirs == {"0", "1", "2", "3"}


async def test_idle_partition_is_not_behind(service: Service) -> None:
    """Case 104: caught up means 0 seconds behind, however old the last record is."""
    await service.produce(range(10))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 10))
        await until(lambda: _seconds_behind(service.metrics[0]) == [0.0] * 4)


async def test_removed_records_block_the_partition_instead_of_a_jump(service: Service) -> None:
    """A gap is named and waits for a person: the position stays, nothing is skipped silently."""
    await service.produce(range(20))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 20))
    await service.pool.execute("UPDATE tidegate.position SET next_offset = 1000 WHERE partition = 0")

    loop = await service.loop()
    async with running(loop):
        await until(lambda: len(loop.holdings.owned) == 4)
        blocked = loop.holdings.get(TopicPartition(service.topic, 0))

        assert blocked is not None
        assert "beyond the log's end" in (blocked.blocked or "")
    assert await service.pool.fetchval("SELECT next_offset FROM tidegate.position WHERE partition = 0") == 1000


async def test_zombie_gives_way_and_the_work_is_done_once(service: Service) -> None:
    """G9: a position taken by somebody else under our feet costs us the batch, not the events."""
    await service.produce(range(50))
    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 50))
        await service.pool.execute("UPDATE tidegate.position SET epoch = epoch + 1")
        await service.produce(range(50, 100))
        await until(lambda: has_settled(service, 100))

    assert await service.effects() == list(range(100))


async def test_position_wins_over_the_groups_offsets(service: Service) -> None:
    """Case 25's heart: with the group's offsets gone the job resumes from its own row."""
    await _resumes_after(service, _set_group_back)


async def test_a_group_that_kafka_forgot_resumes_from_our_row(service: Service) -> None:
    """Case 25: after a week without members Kafka knows neither offsets nor that there ever was a group."""
    await _resumes_after(service, _delete_group)


async def _resumes_after(service: Service, lose: Callable[[Service], Awaitable[None]]) -> None:
    await service.produce(range(30))
    async with running(await service.loop()):
        await until(lambda: has_settled(service, 30))
    await lose(service)
    assert await service.committed() == 0
    await service.produce(range(30, 40))

    loop = await service.loop()
    async with running(loop):
        await until(lambda: has_settled(service, 40))

    assert loop.meter.tally.records == 10
    assert await service.effects() == list(range(40))


def _lag_partitions(metrics: Metrics) -> set[str]:
    return {
        sample.labels["partition"]
        for family in metrics.registry.collect()
        if family.name == "tidegate_seconds_behind"
        for sample in family.samples
    }


def _seconds_behind(metrics: Metrics) -> list[float]:
    return [
        sample.value
        for family in metrics.registry.collect()
        if family.name == "tidegate_seconds_behind"
        for sample in family.samples
    ]


async def _set_group_back(service: Service) -> None:
    """The group's offsets go back to the start."""
    async with join_group(
        service.kafka,
        group=f"{service.topic}.notes",
        topics=[service.topic],
        on_assigned=lambda _: None,
        on_revoked=_noop,
    ) as member:
        await member.commit(dict.fromkeys(member.assignment(), 0))


async def _delete_group(service: Service) -> None:
    """Kafka knows nothing of the group any more: neither offsets nor that there ever was one."""
    group = f"{service.topic}.notes"
    admin = AIOKafkaAdminClient(bootstrap_servers=service.kafka.bootstrap)
    await admin.start()
    try:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request_to_node(coordinator, DeleteGroupsRequest([group]))
        assert answer.results == [(group, 0)]
        assert group not in [name for name, *_ in await admin.list_consumer_groups()]
    finally:
        await admin.close()


async def _noop(_: object) -> None:
    return None
