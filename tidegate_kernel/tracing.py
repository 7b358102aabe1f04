"""Traces: a span a batch, linked to the producers' contexts, and one a run by the clock.

Without an endpoint nothing is recorded or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

AttributeValue = str | int

# OpenTelemetry's own default limit of links on a span is 128; a batch of 500 needs no more to find its producers, nor
# more tenants and correlation ids for one to be found by.
_LINKS = 32
_PARTS_OF_TRACEPARENT = 4


@contextmanager
def exported_traces(endpoint: str | None, *, service: str, version: str) -> Iterator[None]:
    """Spans go to the OTLP/HTTP `endpoint` while inside, the rest at the end; without one they cost next to nothing."""
    if endpoint is None:
        yield
        return
    # Here, because the exporter brings an HTTP client that a process without traces need not load.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service, SERVICE_VERSION: version}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


@contextmanager
def batch_span(
    traceparents: Iterable[str | None],
    attributes: Mapping[str, AttributeValue],
    lists: Callable[[], Mapping[str, Iterable[str | None]]] = dict,
) -> Iterator[None]:
    """A span around the work on a batch, linked to the first distinct producers' contexts.

    `lists`: what its events say, asked only where spans are recorded; of each the first distinct texts are attributes.
    """
    tracer = trace.get_tracer("tidegate")
    is_recorded = trace.get_tracer_provider().__class__ is TracerProvider
    links = _links(traceparents) if is_recorded else []
    told: dict[str, AttributeValue | list[str]] = dict(attributes)
    if is_recorded:
        told |= {name: list(_first_distinct(texts)) for name, texts in lists().items()}
    with tracer.start_as_current_span("batch", kind=SpanKind.CONSUMER, links=links, attributes=told):
        yield


class RunSpan:
    """The span of a run, while it is worked on."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def ended(self, outcome: str, *, error: str | None) -> None:
        """The span says how the run left its process; `error`: the class of what failed."""
        self._span.set_attribute("tidegate.outcome", outcome)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))


@contextmanager
def run_span(attributes: Mapping[str, AttributeValue]) -> Iterator[RunSpan]:
    """A span around the work on a run of a job by the clock: one a run, whatever the number of its items."""
    tracer = trace.get_tracer("tidegate")
    with tracer.start_as_current_span("run", kind=SpanKind.INTERNAL, attributes=dict(attributes)) as span:
        yield RunSpan(span)


def _links(traceparents: Iterable[str | None]) -> list[Link]:
    return [Link(context) for told in _first_distinct(traceparents) if (context := _context(told)) is not None]


def _first_distinct(texts: Iterable[str | None]) -> Iterable[str]:
    distinct: dict[str, None] = {}
    for text in texts:
        if text:
            distinct[text] = None
            if len(distinct) == _LINKS:
                break
    return distinct


def _context(traceparent: str) -> SpanContext | None:
    """The producer's context, or None for a header that is no W3C traceparent (https://www.w3.org/TR/trace-context/)."""
    parts = traceparent.split("-")
    if len(parts) != _PARTS_OF_TRACEPARENT:
        return None
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return None
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
