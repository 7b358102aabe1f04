"""What `tidegate status` says of readers: from Postgres and Kafka, no worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest
from pydantic import SecretStr

from inbox.store import register_job
from projections.freshness import Freshness
from projections.memory import MemorySink
from tests.integration.live import Service
from tidegate import App, CloudEvents, Event, Json, ProjectionJob, Topic, Upsert, on
from tidegate.console.lag import PartitionStatus
from tidegate.console.status import JobStatus, Verdict, read_status
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import JobCode
from tidegate_kernel.kafka import open_reader
from tidegate_kernel.settings import Settings

pytestmark = pytest.mark.servers

SLA = timedelta(seconds=300)


class Noted(msgspec.Struct):
    n: int


def document(event: Event[Noted]) -> Upsert:
    return Upsert(event.id, version=1, document={"n": event.data.n})


class Bench:
    """A projection on a topic of its own with a few records, whose rows a test writes."""

    def __init__(self, service: Service, topic_id: UUID, job: int) -> None:
        self.service, self.topic_id, self.job = service, topic_id, job
        projection = ProjectionJob(
            code="notes",
            topics=[Topic(service.topic, format=Json(), envelope=CloudEvents())],
            unlisted="skip",
            runbook="-",
            events=[on("noted", Noted, document)],
            sink=MemorySink(),
            freshness_sla=SLA,
        )
        self.app = App(service=service.topic, owner="tests", jobs=[projection])

    async def stand(self, position: int, visible: int | None, *, moved_ago: float = 0.0, **row: object) -> None:
        """Partition 0 is settled and visible so far; the others have nothing in them."""
        pool, moved = self.service.pool, timedelta(seconds=moved_ago)
        await pool.execute("DELETE FROM tidegate.position")
        await pool.execute("DELETE FROM tidegate.visible")
        await pool.execute(
            "INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id, moved_at) "
            "VALUES ($1, $2, 0, $3, $4, now() - $5::interval)",
            self.job,
            self.service.topic,
            position,
            self.topic_id,
            moved,
        )
        if visible is not None:
            await pool.execute(
                "INSERT INTO tidegate.visible "
                "(job, topic, partition, next_offset, topic_id, seen_at, trouble_since, rewound_from, trouble) "
                "VALUES ($1, $2, 0, $3, $4, now() - $5::interval, now() - $5::interval, $6, $7)",
                self.job,
                self.service.topic,
                visible,
                self.topic_id,
                moved,
                row.get("rewound_from"),
                row.get("trouble"),
            )

    async def status(self) -> tuple[JobStatus, PartitionStatus]:
        settings = Settings(postgres_dsn=SecretStr(self.service.dsn), kafka=self.service.kafka)
        (job,) = (await read_status(self.app, settings, SystemClock())).jobs
        return job, next(each for each in job.partitions if each.partition == 0)

    async def end(self) -> int:
        """Where partition 0 ends."""
        return (await self.status())[1].end or 0


@pytest.fixture
async def bench(service: Service, unique_name: Callable[[str], str]) -> Bench:
    await service.produce(range(40))
    async with open_reader(service.kafka) as reader:
        topic_id = await reader.topic_id(service.topic)
    async with service.pool.acquire() as connection:
        job = await register_job(connection, service=service.topic, code=JobCode("notes"), claim_rule="v1")
    return Bench(service, topic_id, job)


async def test_caught_up_and_visible_is_ok_for_ever(bench: Bench) -> None:
    """Case 104: a day without an event is no day behind."""
    await bench.stand(0, None)
    end = await bench.end()
    assert end > 0
    await bench.stand(end, end, moved_ago=86_400)

    _, partition = await bench.status()

    assert (partition.reader_seconds, partition.state) == (0.0, Freshness.OK)


async def test_settled_and_not_visible_is_the_age_of_the_first_unseen_record(bench: Bench) -> None:
    """The consumer has nothing left to do, and readers miss what it did."""
    await bench.stand(0, None)
    end = await bench.end()
    await bench.stand(end, end - 1)

    _, partition = await bench.status()

    assert partition.seconds_behind == 0.0
    assert partition.reader_seconds is not None
    assert 0 < partition.reader_seconds < 120
    assert partition.view is not None
    assert partition.view.visible == end - 1


async def test_why_nothing_becomes_visible_is_told_with_since_when(bench: Bench) -> None:
    """Nothing of the consumer shows it: positions stand at the end, and its lag is zero."""
    await bench.stand(0, None)
    end = await bench.end()
    await bench.stand(end, 0, moved_ago=600, trouble="index 'orders': 2 of 4 shard copies did not refresh")

    _, partition = await bench.status()

    assert partition.view is not None
    assert partition.view.trouble == "index 'orders': 2 of 4 shard copies did not refresh"
    assert partition.view.trouble_seconds == pytest.approx(600, abs=60)
    assert partition.view.still_seconds == pytest.approx(600, abs=60)


async def test_moved_back_by_hand_is_rewound_until_it_is_back(bench: Bench) -> None:
    """At once, and before any refresh has noticed."""
    await bench.stand(0, None)
    end = await bench.end()

    await bench.stand(2, end)
    _, at_once = await bench.status()
    await bench.stand(3, 3, rewound_from=end)
    job, noticed = await bench.status()
    await bench.stand(end, end)
    _, back = await bench.status()

    for each in (at_once, noticed):
        assert each.view is not None
        assert (each.state, each.view.rewound_from) == (Freshness.REWOUND, end)
    assert at_once.view is not None
    assert at_once.view.visible == 2
    assert job.verdict is Verdict.REWOUND
    assert back.state is Freshness.OK


async def test_paused_partition_is_paused_and_not_late(bench: Bench) -> None:
    """The alert for it would be the operator's own doing."""
    await bench.stand(0, 0, moved_ago=3600)
    await bench.service.pool.execute(
        "INSERT INTO tidegate.intent (kind, job, reason, actor) VALUES ('pause', $1, 'looking', 'alice')", bench.job
    )

    _, partition = await bench.status()

    assert partition.state is Freshness.PAUSED


async def test_position_before_the_first_refresh_is_no_lag_of_an_age(bench: Bench) -> None:
    """A job that was upgraded has no row yet: nobody knows what readers see, and the settled lag is what there is."""
    await bench.stand(0, None)
    end = await bench.end()
    await bench.stand(end, None)

    _, partition = await bench.status()

    assert (partition.reader_seconds, partition.state) == (0.0, Freshness.OK)
