"""Where a batch has to stop for a paused tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from consumers.batch import Stop
from consumers.decoding import Decoded


def first_stop(decoded: Decoded, paused: Mapping[str, str]) -> Stop | None:
    """The first record that belongs to a tenant of `paused` (tenant to why), if there is one.

    What nobody can tell the tenant of goes on: a value that cannot be opened, a record without a value, a type that
    the job skips.
    """
    offset, tenant = min(_firsts(decoded, paused), default=(None, ""))
    return None if offset is None else Stop(offset, paused[tenant], tenant=tenant)


def _firsts(decoded: Decoded, paused: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The first event, and the first record that opened but made no event."""
    for arrival in decoded.events:
        if arrival.event.scope.tenant in paused:
            yield arrival.record.offset, arrival.event.scope.tenant
            break
    for failure in decoded.failures:
        if failure.envelope is not None and failure.envelope.tenant in paused:
            yield failure.record.offset, failure.envelope.tenant
            break
