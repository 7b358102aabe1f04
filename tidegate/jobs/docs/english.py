"""The sentences of the documents in English. The Russian ones have the same keys and the same facts."""

from __future__ import annotations

from collections.abc import Mapping

ENGLISH: Mapping[str, str] = {
    "written": "written by 'tidegate jobs docs' from the declaration; do not edit by hand",
    "yes": "yes",
    "no": "no",
    "span.days": "d",
    "span.hours": "h",
    "span.minutes": "min",
    "span.seconds": "s",
    "span.for_ever": "for ever",
    # Headings, as the standard has them.
    "heading.purpose": "Purpose",
    "heading.classification": "Classification",
    "heading.schedule": "Schedule and locking",
    "heading.input": "Input model",
    "heading.algorithm": "Algorithm",
    "heading.transaction": "Transaction boundary",
    "heading.idempotency": "Idempotency and retry",
    "heading.observability": "Observability",
    "heading.runbooks": "Runbooks",
    "heading.tests": "Tests",
    "heading.references": "Back references",
    # Labels of lists and columns of tables.
    "label.service": "Service",
    "label.type": "Type",
    "label.trigger": "Trigger",
    "label.tier": "Criticality tier",
    "label.freshness_sla": "Freshness SLA",
    "label.schedule": "Schedule",
    "label.missed": "Missed occurrences",
    "label.overlap": "Overlap",
    "label.lock": "Distributed lock",
    "label.batch_size": "Batch size",
    "label.max_duration": "Max duration",
    "label.unit": "Unit of work",
    "label.stored": "Stored",
    "label.external": "External calls",
    "label.partial_failure": "Partial failure",
    "label.restart": "Restart",
    "label.duplicate": "Duplicate item",
    "label.repeatable": "Repeatable failure",
    "label.poison": "Poison item",
    "label.logs": "Logs",
    "label.metrics": "Metrics",
    "label.traces": "Traces",
    "label.checkpoint": "Checkpoint",
    "label.alerts": "Alerts",
    "column.field": "field",
    "column.type": "type",
    "column.required": "required",
    "column.source": "source",
    "column.description": "description",
    "column.failure": "failure mode",
    "column.look": "look first",
    "column.runbook": "runbook",
    "column.case": "case",
    "column.expected": "must be so",
    "column.tests": "tests",
    "column.metric": "metric",
    "column.measures": "measures",
    "column.alert": "alert",
    "column.condition": "condition",
    # Purpose and classification.
    "purpose.consumer": "Domain task: applies each event of its topics once, as a queue worker.",
    "purpose.projection": "Projection: keeps a read model up to date; a backfill rebuilds it.",
    "purpose.fold": "Projection: keeps a read model of what many events together make; a backfill rebuilds it.",
    "purpose.scheduled": "Operational or domain task by the clock: does something to each of many records.",
    "purpose.maintenance": "Maintenance: removes what has been kept for longer than its retention policy says.",
    "purpose.provider": "Provider polling: brings the catalogue of provider `{provider}` here, page by page.",
    "service": "`{service}`, owner {owner}",
    "type.cron": "Scheduled (`{kind}`)",
    "type.every": "Recurring (`{kind}`)",
    "type.manual": "One-off (`{kind}`)",
    "type.topics": "Queue worker (`{kind}`)",
    "trigger.topics": "topic {topics}; by hand a backfill or a replay of dead letters",
    "trigger.cron": "cron {cron} in time zone {zone}; manual command `tidegate jobs run {job}`",
    "trigger.every": "every {span}; manual command `tidegate jobs run {job}`",
    "trigger.manual": "manual command `tidegate jobs run {job}` alone",
    "freshness_sla.topics": "readers may be {span} behind",
    "freshness_sla.clock": "the last run of each scope that ended well is not older than {span}",
    "tier.critical": "critical",
    "tier.standard": "standard",
    "tier.low": "low",
    # Schedule and locking.
    "schedule.topics": "none: runs for as long as a worker does, as records arrive in consumer group {group}",
    "schedule.cron": "cron {cron}, time zone {zone}.",
    "schedule.every": "every {span}, counted from 1970 in UTC.",
    "schedule.manual": "none: a run is made when somebody asks for one.",
    "schedule.jitter": "Runs begin up to {span} later, each scope by another delay.",
    "missed.latest": "after a downtime one run, which tells how many it stands for",
    "missed.each": "after a downtime a run for each, up to the last {limit}",
    "overlap.skip": "while an earlier run of the scope has not ended, the occurrence is recorded as `skipped_overlap`",
    "overlap.wait": "while an earlier run of the scope has not ended, the next one waits",
    "lock.topics": (
        "key {key}; time to live: until another worker takes the partition over, which raises the epoch; owner: the "
        "member of group {group} that the partition is assigned to. A write under an older epoch changes nothing"
    ),
    "lock.clock": (
        "key {key}; time to live {ttl}, renewed every {renewal}; owner: the process that has claimed the run, under a "
        "fencing token that grows with each owner. A write under an older token changes nothing"
    ),
    "batch_size.topics": "{size} records of one partition at most",
    "batch_size.clock": "{size} items at most",
    "max_duration.consumer": (
        "{limit} for a call of a handler, then it is cut off; Postgres ends a transaction that is silent for {silence}"
    ),
    "max_duration.topics": "none: pure functions and writes to the store, each with a time limit of its own",
    "batch_size.upkeep": "chunks of some hundred to a thousand, as its round has them",
    "max_duration.upkeep": "{limit} for a run; then it is cut off",
    "max_duration.clock": "{limit} for a run, {handler} for a call of a handler; then it is cut off",
    # Input model.
    "request.consumer": "Request model: the events {models}, which become {commands}.",
    "request.topics": "Request model: the events {models}.",
    "request.clock": "Request model: {query} asks for a page of items, {command} works on one of them.",
    "request.upkeep": "Request model: none; a run is one round, and asks no handler of the service.",
    "request.input": "Parameters of a run: {model}.",
    "source.envelope": "envelope attribute {names}",
    "source.no_scope": "none: the topics tell no scope",
    "source.event_id": "envelope, else topic, partition and offset",
    "source.event": "payload of {types}",
    "source.scope": "the schedule's scope, or `--tenant` and `--brand` of the manual input",
    "source.across": "none: all tenants at once, see Algorithm",
    "source.at": "the schedule's occurrence, or `--at` of the manual input",
    "source.param": "`--param {name}=…` of the manual input; a run by the clock has the default",
    "field.tenant": "tenant boundary",
    "field.brand": "brand within the tenant",
    "field.event_id": "what the event is applied once by",
    "field.scheduled_at": "what the run was made for; the same for its retries",
    # Algorithm.
    "step.topics.lock": (
        "Take the lock {key}: a worker owns the partition under a new epoch. The correlation id is the event's own."
    ),
    "step.topics.scope": "Tenant and brand are those of each event; a call of a handler gets events of one scope only.",
    "step.topics.across": "A state is made of several tenants' events, because: {reason}",
    "step.topics.load": "Load a batch of up to {size} records of one partition, in the order of their offsets.",
    "step.consumer.apply": "Apply the rule of each event type: {works}.",
    "step.projection.apply": "Compute the writes of each event by a pure function: {works}; send them to {sink}.",
    "step.fold.apply": "Change the state of each event's key by a pure function: {works}; render it for {sink}.",
    "step.consumer.store": "Store the position, the claims of the event ids and the dead letters in the transaction.",
    "step.projection.store": (
        "Store the position, the claims of the event ids and the dead letters, after the store has taken the writes."
    ),
    "step.fold.store": "Store position, claims, states and dead letters in one transaction; changed keys become dirty.",
    "step.consumer.facts": (
        "What handlers publish is written to the outbox in the same transaction; the relay brings it to Kafka in the "
        "order of each key, at least once, with the same ids."
    ),
    "step.projection.facts": "No domain events are published: {sink} is the result. Dead letters leave by the outbox.",
    "step.topics.end": (
        "Tell Kafka the settled offsets, write metrics; the lock is kept until the partition is revoked."
    ),
    "step.clock.lock": (
        "Claim a run that is due together with the lease {key}, under a fencing token; the run has its correlation id, "
        "which retries keep."
    ),
    "step.clock.scope": "Determine tenant and brand.",
    "scopes.listed": "A run for each of {scopes}; no run sees the data of another.",
    "scopes.asked": "A run for each scope that {source} names when the job is due; no run sees the data of another.",
    "scopes.across": "One run scans across all tenants, because: {reason}",
    "step.clock.load": (
        "Load a batch: {query} ({handlers}) gives up to {size} items behind the checkpoint, in the order of {key}."
    ),
    "step.provider.load": (
        "Load a page: {query} ({handlers}) calls the provider once, outside of any transaction, for up to {size} items "
        "in its own order, behind the page that the checkpoint names."
    ),
    "step.clock.apply": "Apply the rule to each record: {command} ({handlers}).",
    "rule.retention": "Removed is what is older than {span}.",
    "rule.by_rule": "Removed is what its own rule says: {words}.",
    "rule.audited": "Each chunk that removes something is audited.",
    "rule.not_audited": "What is removed is nobody's data: no audit.",
    "rule.provider": (
        "Provider {provider} may be used for {access}; at most {calls} calls in {per} over all processes; after "
        "{failures} failures in a row it is left alone for {rest}. Each run reads from {reach} before the start of the "
        "last successful one."
    ),
    "step.clock.store": "Store the checkpoint and the result of each item under the token, in the same transaction.",
    "step.clock.facts": (
        "What handlers publish is written to the outbox in the same transaction; the relay brings it to Kafka in the "
        "order of each key, at least once, with the same ids."
    ),
    "step.upkeep.round": "Do one round: search what may leave and remove it, chunk by chunk, asking nobody for items.",
    "step.upkeep.store": "Write down under the token after each chunk how much it removed; no checkpoint is kept.",
    "step.clock.end": "Release the lock, write the result of the run, metrics and the log.",
    # Transaction boundary.
    "unit.consumer": "a batch of one partition; after a failure each event under a savepoint of its own",
    "unit.projection": "a batch of one partition: apply to the store, then settle in one statement",
    "unit.stable": "a batch of one partition: begin its range, apply it under a stable name, settle",
    "unit.fold": "a batch of one partition; rendering is a unit of its own, key by key",
    "unit.upkeep": "per chunk of removals; not all of them are in Postgres",
    "unit.item": "per item",
    "unit.batch": "per batch of up to {size} items; after a failure each item under a savepoint of its own",
    "stored.consumer": (
        "entities of the handlers, `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, `tidegate.parked`, "
        "`tidegate.outbox`. Deeds by hand are audited in `tidegate.audit`"
    ),
    "stored.projection": (
        "documents in {sink}; then `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, `tidegate.outbox`. "
        "Deeds by hand are audited in `tidegate.audit`"
    ),
    "stored.stable": (
        "the claimed range in `tidegate.position` and `tidegate.inbox`; rows in {sink}; then the position. Deeds by "
        "hand are audited in `tidegate.audit`"
    ),
    "stored.fold": (
        "`tidegate.fold_state`, `tidegate.dirty`, `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, "
        "`tidegate.parked`; later documents in {sink}. Deeds by hand are audited in `tidegate.audit`"
    ),
    "stored.clock": (
        "entities of the handler, `tidegate.job_item`, `tidegate.job_checkpoint`, `tidegate.job_run`, "
        "`tidegate.outbox`. Deeds by hand are audited in `tidegate.audit`.{more}"
    ),
    "stored.upkeep": (
        "the run and its counts in `tidegate.job_run`, beside what is removed. Deeds by hand are audited in "
        "`tidegate.audit`"
    ),
    "stored.cursor": " The run that ends well moves `tidegate.provider_cursor`",
    "stored.audit": " Each chunk that removed something has its row in `tidegate.audit`",
    "external.consumer": "{calls}; what is published leaves after the commit, repeated until Kafka has it",
    "external.projection": (
        "{sink} before the commit, repeated whole until it is taken; a version makes repeats harmless"
    ),
    "external.stable": "{sink} before the commit, repeated under the same name, which the store takes once",
    "external.fold": "{sink} after the commit, repeated until it is taken; the revision makes repeats harmless",
    "external.clock": "{calls}; what is published leaves after the commit, repeated until Kafka has it",
    "external.provider": (
        "the provider is read before the commit, within rate limit and circuit breaker, and changes nothing there; "
        "what is published leaves after the commit, repeated until Kafka has it"
    ),
    "calls.none": "none declared",
    "calls.before": "{handlers} before the transaction, with retry",
    "calls.inside": ("{handlers} inside the transaction: no rollback takes it back, and a repeat calls it again"),
    "partial.park": "continue: a dead letter in {topic}; later events of its key are parked, all others go on",
    "partial.skip": "continue: a dead letter in {topic}; later events of its key pass",
    "partial.projection": "continue: a dead letter in {topic}; a newer version of the document passes",
    "partial_failure.upkeep": "stop: the run ends as `failed`; what it has removed stays removed",
    "partial.continue": "continue: the item is counted as failed, and tried again by the next run that meets it",
    "partial.stop": "stop: the run ends before the item; what it has done stands",
    "partial.quarantine": ("quarantine: the item becomes a dead letter in {topic}, the run goes on with the next"),
    # Idempotency and retry.
    "restart.topics": "from the position in Postgres; a batch that was cut off was rolled back whole",
    "restart.run": "a retry goes on behind the checkpoint of its run; the next occurrence begins at the start",
    "duplicate.upkeep": "none: what is gone is not removed twice",
    "poison.upkeep": "none: what stands in the way of a round fails its run, which names it",
    "external.upkeep": "to Postgres, and of tombstones to the job's store and to Kafka, outside of transactions",
    "restart.upkeep": "a retry begins a round anew, and finds less to remove",
    "restart.job": "every run goes on behind the checkpoint of the last one",
    "restart.provider.run": "a retry goes on at the page where its run broke off; the next occurrence asks anew",
    "restart.provider.job": "every run goes on at the page where a broken one stopped, with that one's question",
    "duplicate.item_version": "deduplicated by {key} and {version} of the item in the scope, for ever",
    "duplicate.claim": "deduplicated by event id, claimed in `tidegate.inbox`; {kept}",
    "horizon": "remembered for {span}",
    "horizon.default": "remembered for as long as Kafka keeps the records at least",
    "duplicate.version": "deduplicated by the version of the document: an equal or older write changes nothing",
    "duplicate.occasion": "deduplicated by {key} of the item, once for each occurrence and scope",
    "duplicate.own": "deduplicated by {key} in the scope, for ever",
    "repeatable.topics": (
        "policy `{name}`: {attempts} attempts after a transient failure, {unexpected} after an unexpected one, "
        "{crashes} where the process dies; pauses from {first} to {longest}, with jitter, outside any transaction. "
        "An outage of something that is needed costs no attempt"
    ),
    "repeatable.clock": (
        "policy `{name}`: {attempts} attempts an item after a transient failure, {unexpected} after an unexpected one, "
        "pauses from {first} to {longest}, with jitter; {runs} attempts a run, {delay} apart. An outage of something "
        "that is needed costs no attempt"
    ),
    "repeatable.upkeep": "{runs} attempts a run, {delay} apart; items have none",
    "poison.park": (
        "dead letter in {topic}, its key waits; replay by `tidegate dlq replay --job {job}`, permitted and audited"
    ),
    "poison.skip": "dead letter in {topic}; replay by `tidegate dlq replay --job {job}`, permitted and audited",
    "poison.projection": "dead letter in {topic}; replay by `tidegate dlq replay --job {job}`, permitted and audited",
    "poison.continue": (
        "failed item, shown by `tidegate jobs items {job}`; a business failure is not repeated in this run"
    ),
    "poison.stop": (
        "the run ends as `failed`; a business failure is not retried: `tidegate jobs run {job}` after a repair"
    ),
    "poison.quarantine": (
        "quarantine: a dead letter in {topic}; {again}; manual review by `tidegate jobs items {job}`, replay by "
        "`tidegate jobs replay {job}`, permitted and audited"
    ),
    "again.occasion": "no run of this occurrence tries it again, one of the next does where it meets it",
    "again.own": "no run tries it again for as long as {key} gives it the same key",
    "again.item_version": "no run tries this version of it again",
    # Observability.
    "logs.topics": (
        "{names}; with job, topic and partition; a batch with run, epoch and offsets, a dead letter with correlation "
        "id and tenant"
    ),
    "logs.clock": (
        "{names}; those of a run with job, run, correlation id, tenant and brand, those of the schedule or the "
        "provider with job or provider"
    ),
    "traces.topics": (
        "a span for each batch, linked to the producers' traces, with `tidegate.job`, `tidegate.run` (0: live, else "
        "the backfill's), `tidegate.epoch`, and of its events the first 32 each of `tidegate.tenant` and "
        "`tidegate.correlation_id`"
    ),
    "traces.clock": (
        "a span for each run with `tidegate.correlation_id`, `tidegate.tenant`, `tidegate.brand`, `tidegate.run`, "
        "`tidegate.job`, `tidegate.outcome`"
    ),
    "checkpoint.position": (
        "the position of each partition: `tidegate jobs show {job} --json`, in `batch.settled` as `next_offset`, "
        "`tidegate_position_offset`"
    ),
    "checkpoint.key": (
        "the key of the last item, scope by scope: `tidegate jobs show {job} --json`, in the log of each batch and at "
        "the end of a run; a text, so as a metric only when it moved"
    ),
    "checkpoint.question": (
        "the question and the page of its answer, and the cursor, scope by scope: `tidegate jobs show {job} --json`, "
        "in the log of each page and at the end of a run; the cursor is a time, and so a metric as well"
    ),
    "checkpoint.none": "none: each run begins its round at the start",
    "measure.duration": "duration",
    "measure.processed": "items processed",
    "measure.skipped": "items skipped",
    "measure.failed": "errors",
    "measure.items": "items processed, skipped and failed (`outcome`)",
    "measure.runs": "runs by their end (`outcome`), failed and stalled among them",
    "measure.backlog": "backlog",
    "measure.lag": "lag",
    "measure.freshness": "freshness for readers",
    "measure.checkpoint": "checkpoint",
    "measure.checkpoint_moved": "when the checkpoint last moved",
    "measure.cursor": "cursor of the scope furthest behind",
    "measure.calls": "calls of the provider (`outcome`), throttled and failed among them",
    "measure.held_back": "batches rolled back, to be tried again",
    "measure.parked": "events that wait behind a dead letter",
    "measure.age": "age of the newest settled record",
    "measure.outage": "circuit breakers that are open, by what does not answer",
    "measure.outbox": "records of all jobs that wait for Kafka",
    "measure.events_full": "whether it rests because too much that it publishes waits for Kafka",
    "measure.outbox_age": "lag of what is published",
    "measure.success": "when a run last ended well, of the scope that has waited longest",
    "measure.sla": "the SLA, as declared",
    "measure.contention": "lock contention",
    "alert.stuck": "stuck job",
    "alert.backlog": "backlog",
    "alert.freshness": "readers are behind the SLA of {sla}",
    "alert.errors": "errors",
    "alert.outage": "something that it needs does not answer",
    "alert.success": "no run has ended well within the SLA of {sla}",
    # Runbooks.
    "failure.behind": "it is behind, or nobody owns its partitions",
    "failure.letters": "dead letters",
    "failure.blocked": "a partition waits for a person",
    "failure.outage": "something that it needs does not answer",
    "failure.run_failed": "a run has failed",
    "failure.run_stalled": "a run has stalled: its process is gone",
    "failure.overlap": "runs are skipped: one takes longer than its period",
    "failure.items": "items failed or in quarantine",
    "failure.run_due": "runs are due and nobody works on them",
    "runbook.missing": "`{path}` (not in this repository)",
    # Tests.
    "case.empty_batch": "empty batch",
    "case.partial_failure": "partial failure",
    "case.single_runner": "duplicate run: contention",
    "case.repeat_is_idempotent": "duplicate run: repeated trigger",
    "case.cancellation": "cancellation",
    "case.retry_duplicates_nothing": "retry",
    "case.replay_needs_permission": "manual replay",
    "expected.empty_batch": "a successful no-op",
    "expected.partial_failure": "the checkpoint stands behind what is done; a retry goes on there",
    "expected.single_runner": "one owner of the lock; no two run side by side",
    "expected.repeat_is_idempotent": "the result is the same as of one",
    "expected.cancellation": "a graceful stop after what is in hand",
    "expected.retry_duplicates_nothing": "neither money nor events twice",
    "expected.replay_needs_permission": "refused without permission; both kept in the audit",
    "tests.none": "no test says that it covers this",
    "references.none": "No other document names this job.",
}
