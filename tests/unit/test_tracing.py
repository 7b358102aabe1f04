"""Traces: one span a batch, linked to its producers."""

import gc
import tracemalloc

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
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


def test_batch_tells_whose_events_it_holds(exporter: InMemorySpanExporter) -> None:
    """A trace is looked for by tenant or correlation id, and a big batch makes no big span."""
    ids = [f"c{number}" for number in range(1000)]
    with batch_span([], {"tidegate.run": 0}, lambda: {"tidegate.tenant": ["acme", None, "acme", "zebra"], "ids": ids}):
        pass

    attributes = dict(exporter.get_finished_spans()[0].attributes or {})
    assert attributes == {"tidegate.run": 0, "tidegate.tenant": ("acme", "zebra"), "ids": tuple(ids[:32])}


def test_events_are_not_looked_at_where_no_span_is_recorded() -> None:
    """Without an endpoint a batch costs nothing more."""

    def lists() -> dict[str, list[str]]:
        raise AssertionError("nobody records it")

    with batch_span([], {}, lists):
        pass


def test_links_are_bounded(exporter: InMemorySpanExporter) -> None:
    """A big batch of traced events makes no big span."""
    with batch_span((f"00-{n:032x}-{n:016x}-01" for n in range(1, 1000)), {}):
        pass

    assert len(exporter.get_finished_spans()[0].links) == 32


class CountingProcessor(SpanProcessor):
    """Counts spans and keeps none."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended += 1


def test_a_hundred_thousand_messages_leave_nothing_open_and_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 111: a span, or a link, that is kept for each message ends a worker after a day. Batches that fail, too."""
    counted, provider = CountingProcessor(), TracerProvider()
    provider.add_span_processor(counted)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))

    def handle(batches: int) -> None:
        for batch in range(batches):
            parents = (f"00-{n + 1:032x}-{n + 1:016x}-01" for n in range(batch * 500, batch * 500 + 500))
            try:
                with batch_span(parents, {"tidegate.job": "notes", "tidegate.first_offset": batch * 500}):
                    if batch % 10 == 0:
                        raise TimeoutError
            except TimeoutError:
                continue

    handle(20)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        handle(200)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert counted.begun == counted.ended == 220
    assert grown < 1024 * 1024
