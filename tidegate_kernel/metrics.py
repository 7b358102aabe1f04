"""The catalogue: every metric with its unit, labels and meaning. No label ever grows with the data.

`topic` and `partition` are bounded by what is assigned, `job` and `reason` by what is declared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# Seconds; from a fresh projection to a day's outage.
LAG_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0)
BATCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LagSample(NamedTuple):
    """What is known of one owned partition when metrics are read. `records` and `seconds` are None while unknown."""

    job: str
    topic: str
    partition: int
    records: int | None
    seconds: float | None
    last_event_age: float | None
    is_blocked: bool
    is_stalled: bool = False
    is_paused: bool = False
    is_full: bool = False
    visible_offset: int | None = None
    reader_seconds: float | None = None
    next_offset: int | None = None


class Metrics:
    """All metrics of a process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("records", "Records settled, whatever became of them.", ["job", "topic"])
        self.applied = self._counter("events_applied", "Events whose effects were applied.", ["job"])
        self.duplicates = self._counter("events_duplicate", "Events dropped because their id was claimed.", ["job"])
        self.skipped = self._counter(
            "events_skipped", "Events of types no route takes, under unlisted='skip'.", ["job"]
        )
        self.stale = self._counter("writes_stale", "Writes older than what the sink holds.", ["job"])
        self.tombstones_purged = self._counter(
            "tombstones_purged", "Tombstones removed from a sink: nothing older can come any more.", ["job"]
        )
        self.parked = self._counter("events_parked", "Events parked behind a dead letter of their key.", ["job"])
        self.dead_letters = self._counter("dead_letters", "Records and items now dead letters.", ["job", "reason"])
        self.letters_expired = self._counter(
            "dead_letters_expired", "Dead letters removed some time after they were decided.", ["job"]
        )
        self.replayed_letters = self._counter(
            "replayed_letters", "Dead letters by what became of them in a replay or discard.", ["job", "outcome"]
        )
        self.unresolved_letters = self._job_gauge(
            "unresolved_letters", "Dead letters that nobody has decided about; of all workers."
        )
        self.oldest_letter = self._job_gauge(
            "oldest_unresolved_letter_seconds",
            "Age of the oldest dead letter that nobody has decided about; 0 without one. Looked up every 5 minutes.",
        )
        self.taken = self._counter(
            "partitions_taken", "Partitions whose ownership was taken, under a new epoch: lock contention.", ["job"]
        )
        self.held_back = self._counter("batches_held_back", "Batches rolled back to be tried again.", ["job"])
        self.flood_stops = self._counter("flood_stops", "Topics stopped for a flood of dead letters.", ["job"])
        self.backlog_full = Gauge(
            "tidegate_letter_backlog_full",
            "1 while the job rests because too many of its dead letters wait for their topic, else 0.",
            ["job"],
            registry=self.registry,
        )
        self.events_backlog_full = self._job_gauge(
            "event_backlog_full", "1 while the job rests because too much that it publishes waits for Kafka, else 0."
        )
        self.breaker_open = Gauge(
            "tidegate_breaker_open",
            "1 while something that the job needs does not answer its probe, else 0.",
            ["job", "dependency"],
            registry=self.registry,
        )
        self.clock_skew = self._counter("clock_skew_events", "Events dated after their settling.", ["job"])
        self.batch_seconds = Histogram(
            "tidegate_batch_seconds",
            "From records in hand to settled.",
            ["job"],
            buckets=BATCH_BUCKETS,
            registry=self.registry,
        )
        self.outbox = self._counter("outbox_records", "Outbox records by what became of them.", ["outcome"])
        self.outbox_waiting = self._gauge(
            "outbox_waiting", "Outbox records not in Kafka yet, counted up to 100,000; of the whole database."
        )
        self.outbox_oldest = self._gauge("outbox_oldest_seconds", "Age of the oldest record in the outbox; 0 if empty.")
        self.outbox_set_aside = self._gauge("outbox_set_aside", "Outbox records that Kafka will never take.")
        self.inbox_days = self._counter("inbox_days", "Days of the inbox by what was done to them.", ["done"])
        self.inbox_removed = self._counter("inbox_claims_removed", "Claims past the horizon, removed.", ["part"])
        self.inbox_partitions = self._part_gauge("inbox_partitions", "Partitions of the inbox; of the whole database.")
        self.inbox_claims = self._part_gauge("inbox_claims", "Claims in the inbox, estimated; of the whole database.")
        self.inbox_dead_rows = self._part_gauge("inbox_dead_rows", "Removed claims whose room is not free yet.")
        self.inbox_oldest = self._part_gauge("inbox_oldest_claim_days", "Age of the oldest claim, at the last sweep.")
        self.upkeep_succeeded = self._gauge(
            "inbox_upkeep_succeeded_timestamp_seconds", "When upkeep of the inbox last came to its end; any worker's."
        )
        self.upkeep_seconds = self._gauge("inbox_upkeep_seconds", "How long this worker's last round of upkeep took.")
        self.refreshes = self._counter("refreshes", "Refreshes of a projection's store by outcome.", ["job", "outcome"])
        self.fold_rendered = self._counter("fold_keys_rendered", "Keys of folds whose state went to the sink.", ["job"])
        self.fold_failures = self._counter("fold_render_failures", "Keys of folds that could not be rendered.", ["job"])
        self.fold_dirty = self._job_gauge("fold_dirty_keys", "Keys whose state the sink does not show; of all workers.")
        self.fold_failed = self._job_gauge(
            "fold_failed_keys", "Keys that could not be rendered, and wait for a change; of all workers."
        )
        self.fold_oldest = self._job_gauge(
            "fold_oldest_dirty_seconds", "How long the first dirty key has waited to be rendered; 0 without one."
        )
        self.runs = self._counter(
            "runs", "Runs of jobs by the clock by how they left their process.", ["job", "outcome"]
        )
        self.run_items = self._counter("run_items", "Items of runs by what became of them.", ["job", "outcome"])
        self.runs_due = self._job_gauge("runs_due", "Runs due by now that nobody works on; of all workers.")
        self.run_contention = self._counter(
            "run_lock_contention", "Looks at a due run whose lock another run held, so that it had to wait.", ["job"]
        )
        self.run_checkpoint = self._job_gauge(
            "run_checkpoint_timestamp_seconds", "When a run of this process last moved its checkpoint."
        )
        self.run_succeeded = self._job_gauge(
            "run_last_success_timestamp_seconds",
            "When a run last ended well, of the scope that has waited longest; where there is a freshness_sla.",
        )
        self.provider_synced = self._job_gauge(
            "provider_synced_until_timestamp_seconds",
            "The cursor of the scope furthest behind: what its provider had by then is here. 0: one has none yet.",
        )
        self.provider_calls = self._counter(
            "provider_calls", "Calls of providers by what came of them.", ["job", "outcome"]
        )
        self.run_seconds = Histogram(
            "tidegate_run_seconds",
            "How long a process worked on a run.",
            ["job"],
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        self.sink_request_limit = self._job_gauge(
            "sink_request_limit", "Requests that may be under way to the sink at once; shrinks while it is overloaded."
        )
        self.freshness_sla = Gauge(
            "tidegate_freshness_sla_seconds",
            "How far behind readers, or how old the last run that ended well, may be, as declared.",
            ["job"],
            registry=self.registry,
        )
        self.freshness_objective = self._job_gauge(
            "freshness_objective",
            "Which part of the time partitions have to be within their freshness_sla, as declared.",
        )
        self.freshness_good = self._counter(
            "freshness_good_seconds", "Seconds in which readers of a partition were within freshness_sla.", ["job"]
        )
        self.freshness_bad = self._counter(
            "freshness_bad_seconds", "Seconds in which readers of a partition were further behind than that.", ["job"]
        )
        self.freshness_burn = Gauge(
            "tidegate_freshness_burn_rate",
            "Bad seconds of this worker's partitions against what the objective allows; 1 just uses the budget up.",
            ["job", "window"],
            registry=self.registry,
        )
        self.event_visible_unmeasured = self._counter(
            "event_visible_unmeasured", "Events that too many others waited with to be measured until seen.", ["job"]
        )
        self.event_visible = EventLag(
            "tidegate_event_visible_seconds", "From an event's own time to readers of its projection seeing it."
        )
        self.event_lag = EventLag("tidegate_event_lag_seconds", "From an event's own time to its settling.")
        self.lags = LagCollector()
        self.registry.register(self.event_lag)
        self.registry.register(self.event_visible)
        self.registry.register(self.lags)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"tidegate_{name}", meaning, registry=self.registry)

    def _job_gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"tidegate_{name}", meaning, ["job"], registry=self.registry)

    def _part_gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"tidegate_{name}", meaning, ["part"], registry=self.registry)

    def _counter(self, name: str, meaning: str, labels: Sequence[str]) -> Counter:
        return Counter(f"tidegate_{name}", meaning, labels, registry=self.registry)


class EventLag(Collector):
    """Histogram of seconds since events' own times, filled a batch at a time."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe_batch(self, job: str, seconds: Sequence[float]) -> None:
        """Counts one sorted sequence of non-negative lags: a few bisections instead of an observation an event."""
        counts = self._counts.setdefault(job, [0] * (len(LAG_BUCKETS) + 1))
        below = 0
        for index, bound in enumerate(LAG_BUCKETS):
            upto = bisect_right(seconds, bound)
            counts[index] += upto - below
            below = upto
        counts[-1] += len(seconds) - below
        self._sums[job] = self._sums.get(job, 0.0) + sum(seconds)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=["job"])
        for job, counts in self._counts.items():
            total, buckets = 0, []
            for bound, count in zip((*map(str, LAG_BUCKETS), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([job], buckets, self._sums[job])
        yield family


class LagCollector(Collector):
    """Lag of every owned partition, computed when scraped: a revoked partition has no series at once."""

    def __init__(self) -> None:
        self._sources: dict[str, Callable[[], Iterable[LagSample]]] = {}

    def watch(self, job: str, samples: Callable[[], Iterable[LagSample]]) -> None:
        """`samples` answers for `job` until `unwatch`."""
        self._sources[job] = samples

    def unwatch(self, job: str) -> None:
        self._sources.pop(job, None)

    def collect(self) -> Iterable[Metric]:
        records = self._family("records_behind", "Records not settled yet.")
        seconds = self._family("seconds_behind", "Age of the oldest record not settled yet; 0 when caught up.")
        ages = self._family("last_event_age_seconds", "Age of the newest settled record; grows while idle.")
        blocked = self._family("partition_blocked", "1 while the partition waits for a person, else 0.")
        stalled = self._family("partition_stalled", "1 while the partition is behind and not fetched, else 0.")
        paused = self._family("partition_paused", "1 while an operator makes the partition rest, else 0.")
        full = self._family("partition_parking_full", "1 while its next event must be parked without room, else 0.")
        visible = self._family("visible_offset", "Up to where (exclusive) readers see a projection.")
        positions = self._family(
            "position_offset", "The job's checkpoint in the partition: its first offset not settled."
        )
        readers = self._family(
            "reader_seconds_behind", "Age of the oldest record that readers do not see; 0 when caught up and visible."
        )
        for samples in list(self._sources.values()):
            for sample in samples():
                labels = [sample.job, sample.topic, str(sample.partition)]
                for family, value in (
                    (records, sample.records),
                    (seconds, sample.seconds),
                    (ages, sample.last_event_age),
                    (blocked, int(sample.is_blocked)),
                    (stalled, int(sample.is_stalled)),
                    (paused, int(sample.is_paused)),
                    (full, int(sample.is_full)),
                    (visible, sample.visible_offset),
                    (readers, sample.reader_seconds),
                    (positions, sample.next_offset),
                ):
                    if value is not None:
                        family.add_metric(labels, value)
        yield from (records, seconds, ages, blocked, stalled, paused, full, visible, readers, positions)

    def _family(self, name: str, meaning: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"tidegate_{name}", meaning, labels=["job", "topic", "partition"])
