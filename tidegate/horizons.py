"""How long each job remembers event ids, held against how long Kafka can bring them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog

from inbox.store import keep_horizon
from tidegate.assembly import JobParts
from tidegate.jobs.declaration import Job, acts_once
from tidegate_kernel import logs
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.kafka_retention import Retention, read_retention
from tidegate_kernel.postgres import Pool, translated_errors
from tidegate_kernel.settings import KafkaSettings

_log = structlog.get_logger(__name__)

# Twice Kafka's own default retention: a producer that sends a week's events again is still recognised.
_AT_LEAST = timedelta(days=14)
# Kafka looks for what it may delete every five minutes; claims count in days.
_MARGIN = timedelta(days=1)


async def keep_horizons(parts: Sequence[JobParts], settings: KafkaSettings, pool: Pool) -> None:
    """The horizon of every job is stored, for upkeep to go by.

    Raises Misconfigured for one that is shorter than Kafka keeps the job's records, unless the job accepts that.
    """
    retention = await read_retention(settings, {topic.name for part in parts for topic in part.job.topics})
    horizons = [(part.id, horizon_of(part.job, retention)) for part in parts]
    try:
        with translated_errors("store horizons"):
            async with pool.acquire(timeout=10) as connection:
                for job, horizon in horizons:
                    await keep_horizon(connection, job, horizon)
    except Transient as error:
        raise Misconfigured(f"the jobs' horizons cannot be stored: {error}") from error


def horizon_of(job: Job, retention: Mapping[str, Retention]) -> timedelta | None:
    """Returns how long claims of the job are kept, None for ever. Raises Misconfigured as `keep_horizons`.

    A topic that `retention` lacks is one whose settings could not be read: without a declared horizon its claims are
    kept for ever.
    """
    if job.dedupe_horizon is None:
        # A projection's writes carry versions: its claims only count repeats.
        return _as_long_as_kafka(job, retention) if acts_once(job) else _AT_LEAST
    if job.dedupe_horizon == timedelta.max:
        return None
    if acts_once(job) and not job.accept_short_horizon:
        _require_retention_within(job, job.dedupe_horizon, retention)
    return job.dedupe_horizon


def _as_long_as_kafka(job: Job, retention: Mapping[str, Retention]) -> timedelta | None:
    longest = _AT_LEAST
    for topic in job.topics:
        found = retention.get(topic.name)
        if found is None or found.kept is None:
            return None
        longest = max(longest, found.kept + found.segment + _MARGIN)
    return longest


def _require_retention_within(job: Job, horizon: timedelta, retention: Mapping[str, Retention]) -> None:
    for topic in job.topics:
        found = retention.get(topic.name)
        if found is None:
            _log.warning(logs.INBOX_HORIZON_UNCHECKED, job=job.code, topic=topic.name)
        elif found.kept is None or found.kept > horizon:
            raise Misconfigured(
                f"job {job.code!r}: its dedupe_horizon is {_spelled(horizon)}, but topic {topic.name!r} keeps records "
                f"{_kept(found)}: one that is read again after the horizon acts twice. Leave dedupe_horizon out "
                "(claims live as long as the records then), raise it, or declare accept_short_horizon=True"
            )


def _kept(retention: Retention) -> str:
    if retention.kept is not None:
        return f"for {_spelled(retention.kept)} (retention.ms)"
    return "for ever (it is compacted)" if retention.is_compacted else "for ever (retention.ms)"


def _spelled(period: timedelta) -> str:
    if period % timedelta(days=1):
        return str(period)
    return f"{period.days} day{'' if period.days == 1 else 's'}"
