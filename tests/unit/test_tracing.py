"""Traces: one span a batch, linked to its producers."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tidegate_kernel.tracing import batch_span


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    return exporter


def test_batch_is_one_span_linked_to_its_producers(exporter: InMemorySpanExporter) -> None:
    """From the producer's trace one gets to the batch that applied its event; nonsense headers are passed over."""
    parents = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2, 2)] + [None, "nonsense", "00-zz-zz-01"]

    with batch_span(parents, {"tidegate.job": "notes"}):
        pass

    (span,) = exporter.get_finished_spans()
    assert [link.context.trace_id for link in span.links] == [1, 2]
    assert span.attributes is not None
    assert span.attributes["tidegate.job"] == "notes"


def test_links_are_bounded(exporter: InMemorySpanExporter) -> None:
    """A big batch of traced events makes no big span."""
    with batch_span((f"00-{n:032x}-{n:016x}-01" for n in range(1, 1000)), {}):
        pass

    assert len(exporter.get_finished_spans()[0].links) == 32
