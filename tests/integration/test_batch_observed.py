"""What is seen of a batch of a topic job: a span that says whose it is, and its checkpoint in log and metrics."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from tests.integration.notes import Note, Noted, make_loop, note_nothing, noted, running, stands_at, to_note
from tests.integration.road import MakeRoad, SentRecord
from tidegate import CloudEvents, ConsumerJob, Json, ScopeFields, Topic, handle, on
from tidegate.testing.memory import MemoryBroker
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers


def sent(offset: int, tenant: str, correlation_id: str) -> SentRecord:
    told = {"specversion": "1.0", "id": f"e{offset}", "source": "tests", "type": "noted"}
    told |= {"tenantid": tenant, "correlationid": correlation_id}
    return SentRecord(offset, b'{"n":1}', [(f"ce_{name}", text.encode()) for name, text in told.items()])


async def test_span_of_a_batch_says_whose_events_it_holds(make_road: MakeRoad, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correlation id, tenant and run are what a trace is looked for by."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    orders = Topic("orders", format=Json(), envelope=CloudEvents(), scope=ScopeFields(tenant="tenantid"))
    job = ConsumerJob(code="notes", topics=[orders], unlisted="skip", runbook="-", events=[on("noted", Noted, to_note)])
    road = await make_road(job, [handle(Note, note_nothing)])

    await road.handle([sent(0, "acme", "c1"), sent(1, "acme", "c2"), sent(2, "zebra", "c2")])

    (span,) = [each for each in exporter.get_finished_spans() if each.name == "batch"]
    told = dict(span.attributes or {})
    assert told["tidegate.tenant"] == ("acme", "zebra")
    assert told["tidegate.correlation_id"] == ("c1", "c2")
    assert (told["tidegate.job"], told["tidegate.run"], told["tidegate.epoch"]) == ("notes", 0, road.position.epoch)


async def test_checkpoint_of_a_partition_is_a_metric(pool: Pool, database: str) -> None:
    """Up to where a job has come is seen without a look into its tables."""
    broker = MemoryBroker()
    broker.create_topic("notes", partitions=1)
    await broker.writer().write([noted("notes", 1), noted("notes", 2)])
    loop = await make_loop(pool, database, broker, "notes")

    async with running(loop):
        await stands_at(pool, 2)
        registry: CollectorRegistry = loop.meter._metrics.registry
        where = {"job": "notes", "topic": "notes", "partition": "0"}

        assert registry.get_sample_value("tidegate_position_offset", where) == 2
        assert registry.get_sample_value("tidegate_partitions_taken_total", {"job": "notes"}) == 1
