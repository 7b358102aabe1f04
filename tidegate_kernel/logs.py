"""Structured logs: one JSON object a line, the event's name a constant from here, never payload, never secrets."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

WORKER_STARTED = "worker.started"
STOP_ASKED = "process.stop_asked"
STOP_CUT_SHORT = "process.stop_cut_short"
WORKER_STOPPED = "worker.stopped"
JOB_RESTARTED = "job.restarted"
PARTITION_OWNED = "partition.owned"
PARTITION_LOST = "partition.lost"
PARTITION_BLOCKED = "partition.blocked"
PARTITION_STALLED = "partition.stalled"
PARTITION_SUSPECT = "partition.suspect"
RELEASE_FAILED = "partition.release_failed"
PARTITION_PAUSED = "partition.paused"
PARTITION_RESUMED = "partition.resumed"
PARKING_FULL = "partition.parking_full"
TAKEOVER_FAILED = "partition.takeover_failed"
DRAIN_TIMED_OUT = "partition.drain_timed_out"
LISTENER_FAILED = "partition.listener_failed"
FETCH_FAILED = "fetch.failed"
SINK_AWAITED = "sink.awaited"
BREAKER_OPENED = "breaker.opened"
BREAKER_CLOSED = "breaker.closed"
PROBE_STUCK = "breaker.probe_stuck"
REFRESH_FAILED = "refresh.failed"
REFRESH_RESUMED = "refresh.resumed"
BATCH_SETTLED = "batch.settled"
BATCH_HELD_BACK = "batch.held_back"
COMMIT_FAILED = "commit.failed"
FLOOD_STOPPED = "flood.stopped"
DEAD_LETTER = "dead_letter.kept"
LETTERS_EXPIRED = "dead_letter.expired"
LETTER_UPKEEP_FAILED = "dead_letter.upkeep_failed"
TOMBSTONES_PURGED = "tombstones.purged"
TOMBSTONE_UPKEEP_FAILED = "tombstones.upkeep_failed"
REPLAY_STARTED = "replay.started"
REPLAY_BATCH = "replay.batch"
REPLAY_HELD_BACK = "replay.held_back"
REPLAY_FINISHED = "replay.finished"
REPLAY_LEFT = "replay.left_as_it_was"
INBOX_DAYS_ATTACHED = "inbox.days_attached"
INBOX_DAY_EMPTIED = "inbox.day_emptied"
INBOX_SWEPT = "inbox.swept"
INBOX_HORIZON_UNCHECKED = "inbox.horizon_unchecked"
UPKEEP_FAILED = "inbox.upkeep_failed"
RENDERING_HELD_BACK = "rendering.held_back"
RENDERING_RESUMED = "rendering.resumed"
RENDERING_FAILED = "rendering.failed"
OUTBOX_INTERRUPTED = "outbox.interrupted"
OUTBOX_RESUMED = "outbox.resumed"
OUTBOX_TOPICS_UNAVAILABLE = "outbox.topics_unavailable"
OUTBOX_TOPICS_AVAILABLE = "outbox.topics_available"
OUTBOX_SET_ASIDE = "outbox.set_aside"
LEASE_RENEWAL_FAILED = "lease.renewal_failed"
RUN_STARTED = "run.started"
RUN_BATCH = "run.batch_processed"
RUN_ITEM_FAILED = "run.item_failed"
RUN_ENDED = "run.completed"
RUN_FAILED = "run.failed"
RUN_LOST = "run.lost"
RUNS_SKIPPED = "run.skipped_overlap"
RUN_STALLED = "run.stalled"
CLOCK_RESTARTED = "schedule.restarted"
SCHEDULE_HELD_BACK = "schedule.held_back"
SCOPES_UNKNOWN = "schedule.scopes_unknown"
PROVIDER_THROTTLED = "provider.throttled"
BACKFILL_STARTED = "backfill.started"
BACKFILL_RESTARTED = "backfill.restarted"
BACKFILL_FINISHED = "backfill.finished"


def configure_logs(*, style: Literal["json", "console"], level: str) -> None:
    """Everything the process logs goes to standard error in `style`, also what libraries log."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # The Kafka client reports every rebalance step and, while a broker is away, thousands of retries; our own events
    # say what matters.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # A line for each request to Elasticsearch would be a line a batch that says nothing of the batch.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
