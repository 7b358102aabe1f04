-- name: begin_positions
-- First start only: writes where a job begins, before its first fetch. Rows that exist stay as they are.
-- $1 job, $2 run, $3 topics, $4 partitions, $5 next offsets, $6 end offsets (NULL for the live run), $7 topic ids.
INSERT INTO tidegate.position (job, run, topic, partition, next_offset, end_offset, topic_id)
SELECT $1, $2, p.topic, p.partition, p.next_offset, p.end_offset, p.topic_id
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::uuid[])
    AS p (topic, partition, next_offset, end_offset, topic_id)
ON CONFLICT DO NOTHING;

-- name: begin_newcomers
-- Partitions that were added to a topic: as begin_positions, and what each has to wait for.
-- $1 job, $2 run, $3 topic, $4 its id, $5 partitions, $6 next offsets, $7 the older partitions, $8 the ends of their logs.
INSERT INTO tidegate.position (job, run, topic, partition, next_offset, topic_id, waits_for, waits_until)
SELECT $1, $2, $3, p.partition, p.next_offset, $4, $7, $8
FROM unnest($5::int[], $6::bigint[]) AS p (partition, next_offset)
ON CONFLICT DO NOTHING;

-- name: waiting_newcomers
-- Partitions that must not be read yet, each with the first older one that is not far enough. Another incarnation of the
-- topic holds nobody up. $1 job, $2 run.
SELECT DISTINCT ON (n.topic, n.partition) n.topic, n.partition, o.partition AS older, o.next_offset, w.until
FROM tidegate.position AS n
CROSS JOIN LATERAL unnest(n.waits_for, n.waits_until) AS w (partition, until)
JOIN tidegate.position AS o
    ON o.job = n.job AND o.run = n.run AND o.topic = n.topic AND o.topic_id = n.topic_id AND o.partition = w.partition
WHERE n.job = $1 AND n.run = $2 AND n.waits_for IS NOT NULL AND o.next_offset < w.until
ORDER BY n.topic, n.partition, o.partition;

-- name: take_over
-- The caller owns the position from now on: every earlier owner's settle finds another epoch. An owner that neither
-- released it nor moved it has died there. One may have been frozen, or killed for no fault of the records; two in a
-- row at one place make the next record suspect, and so does an attempt at it that has not ended. Who takes over from
-- itself, as after an outage, lives.
-- $1 job, $2 run, $3 topic, $4 partition, $5 owner, $6 the epoch of this process's last ownership, NULL for none.
-- No row: the position was never begun.
UPDATE tidegate.position
SET
    epoch = epoch + 1,
    owner = $5,
    deaths = CASE
        WHEN owner IS NULL OR taken_offset IS DISTINCT FROM next_offset THEN 0
        WHEN owner = $5 AND epoch >= $6 THEN deaths
        ELSE deaths + 1
    END,
    taken_offset = next_offset,
    waits_for = NULL,
    waits_until = NULL
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4
RETURNING
    epoch, next_offset, end_offset, topic_id, grouped_until,
    CASE WHEN range_first = next_offset THEN range_end END AS range_end,
    deaths > 1 OR (attempts > 0 AND attempt_offset IS NOT DISTINCT FROM next_offset) AS is_suspect;

-- name: release_positions
-- The caller gives its positions up alive; what it had begun alone and not ended does not count as an attempt.
-- $1 job, $2 run, $3 topics, $4 partitions, $5 epochs, $6 whether an attempt is under way.
UPDATE tidegate.position AS p
SET owner = NULL, attempts = p.attempts - CASE WHEN r.is_attempting AND p.attempts > 0 THEN 1 ELSE 0 END
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::boolean[]) AS r (topic, partition, epoch, is_attempting)
WHERE p.job = $1 AND p.run = $2 AND p.topic = r.topic AND p.partition = r.partition AND p.epoch = r.epoch;

-- name: note_attempt
-- One more attempt at the record where the caller's own position stands; returns how many there were in a row.
-- $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset. No row: it is not the owner any more.
UPDATE tidegate.position
SET attempts = CASE WHEN attempt_offset = next_offset THEN attempts + 1 ELSE 1 END, attempt_offset = next_offset
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
RETURNING attempts;

-- name: note_group
-- Records of a suspect partition up to an offset are begun together: an owner that ends at them leaves them suspect.
-- Parameters as for note_attempt, and $7 that offset (exclusive).
UPDATE tidegate.position
SET taken_offset = next_offset, deaths = 1, grouped_until = $7
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
RETURNING deaths;

-- name: withdraw_attempt
-- The attempt ended and the process did not. Parameters as for note_attempt.
UPDATE tidegate.position
SET attempts = attempts - 1
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6 AND attempts > 0
    AND attempt_offset = next_offset
RETURNING attempts;

-- name: read_position
-- $1 job, $2 run, $3 topic, $4 partition.
SELECT epoch, next_offset, end_offset, topic_id, CASE WHEN range_first = next_offset THEN range_end END AS range_end
FROM tidegate.position
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4;

-- name: read_positions
-- All positions of a job's run. $1 job, $2 run.
SELECT
    topic, partition, epoch, next_offset, end_offset, topic_id,
    CASE WHEN range_first = next_offset THEN range_end END AS range_end
FROM tidegate.position
WHERE job = $1 AND run = $2
ORDER BY topic, partition;

-- name: advance
-- Moves the caller's own position; no row means that it is not the owner any more.
-- $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset, $7 new next offset.
UPDATE tidegate.position
SET next_offset = $7, moved_at = now()
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
RETURNING next_offset;

-- name: lock_range
-- Locks the caller's own position; returns the range that was begun there, NULLs where none was. No row: it is not the
-- owner any more. $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset.
SELECT CASE WHEN range_first = next_offset THEN range_end END AS range_end, range_failed, range_repeats
FROM tidegate.position
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
FOR UPDATE;

-- name: begin_range
-- From the caller's own position on, records are applied as one. Parameters as for lock_range, $7 the offset behind the
-- last, $8 offsets of events that failed, $9 offsets of events that are repeats.
UPDATE tidegate.position
SET range_first = next_offset, range_end = $7, range_failed = $8, range_repeats = $9
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6;

-- name: blocking_backends
-- Ends the backends that at this moment hold back the one named; $1 its pid. Never a pid remembered from earlier.
SELECT pg_terminate_backend(pid) FROM unnest(pg_blocking_pids($1)) AS b (pid);

-- name: unfinished_backfill
-- The job's backfill that has not ended, if any. $1 job.
SELECT id, source, holder, greatest(extract(epoch FROM lease_until - now()), 0)::float8 AS lease_seconds
FROM tidegate.backfill
WHERE job = $1 AND state = 'running';

-- name: start_backfill
-- At most one a job runs at a time: a second one violates the unique index. $1 job, $2 source, $3 holder, $4 seconds.
INSERT INTO tidegate.backfill (job, source, holder, lease_until)
VALUES ($1, $2, $3, now() + make_interval(secs => $4))
RETURNING id;

-- name: take_backfill
-- Resumes a backfill whose lease ran out. $1 id, $2 holder, $3 seconds. No row: somebody holds it.
UPDATE tidegate.backfill
SET holder = $2, lease_until = now() + make_interval(secs => $3)
WHERE id = $1 AND state = 'running' AND lease_until <= now()
RETURNING id;

-- name: renew_backfill
-- $1 id, $2 holder, $3 seconds. No row: the lease is another's, or the backfill has ended.
UPDATE tidegate.backfill
SET lease_until = now() + make_interval(secs => $3)
WHERE id = $1 AND holder = $2 AND state = 'running'
RETURNING id;

-- name: release_backfill
-- The holder stops before the end; anybody may resume at once. $1 id, $2 holder.
UPDATE tidegate.backfill
SET lease_until = now()
WHERE id = $1 AND holder = $2 AND state = 'running';

-- name: finish_backfill
-- A store that was emptied is full again when a backfill from the beginning is done that began after that.
-- $1 id, $2 holder, $3 state, $4 records, $5 dead letters.
WITH ended AS (
    UPDATE tidegate.backfill
    SET state = $3, finished_at = now(), records = records + $4, dead_letters = dead_letters + $5
    WHERE id = $1 AND holder = $2 AND state = 'running'
    RETURNING id, job, state, source, started_at
),
filled AS (
    UPDATE tidegate.job AS j
    SET emptied_at = NULL
    FROM ended AS e
    WHERE j.id = e.job AND e.state = 'done' AND e.source = 'beginning' AND e.started_at >= j.emptied_at
)
SELECT e.id FROM ended AS e;

-- name: standing_intents
-- What is wanted of a job now; the database's clock decides what has expired. $1 job.
SELECT
    i.id, i.kind, i.topic, i.partition, i.tenant, i.reason, i.actor, i.started_at, i.until,
    extract(epoch FROM i.until - now())::float8 AS seconds_left
FROM tidegate.intent AS i
WHERE i.job = $1 AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
ORDER BY i.id;

-- name: tell_presence
-- What an owner says of its partitions. An owner of an older epoch changes nothing. Who is only taking over has no
-- epoch of its own yet ($5 NULL) and overrides none but a row that was released or that nobody has renewed.
-- $1 job, $2 owner, $3 topics, $4 partitions, $5 epochs, $6 states, $7 details, $8 for how many seconds.
INSERT INTO tidegate.presence AS p (job, topic, partition, owner, epoch, state, detail, since, seen_at)
SELECT
    $1, t.topic, t.partition, $2, coalesce(t.epoch, o.epoch, 0), t.state, t.detail,
    now() - make_interval(secs => t.seconds), now()
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::float8[])
    AS t (topic, partition, epoch, state, detail, seconds)
LEFT JOIN tidegate.position AS o
    ON o.job = $1 AND o.run = 0 AND o.topic = t.topic AND o.partition = t.partition AND t.epoch IS NULL
ON CONFLICT (job, topic, partition) DO UPDATE
SET owner = EXCLUDED.owner, epoch = EXCLUDED.epoch, state = EXCLUDED.state, detail = EXCLUDED.detail,
    since = EXCLUDED.since, seen_at = EXCLUDED.seen_at
WHERE p.epoch <= EXCLUDED.epoch
    AND (
        EXCLUDED.state <> 'taking_over'
        OR p.state IN ('released', 'taking_over')
        OR p.seen_at < now() - make_interval(secs => 30)
    );

-- name: letters_wait
-- Whether more than some records wait for a topic. $1 topic, $2 how many may.
SELECT EXISTS (
    SELECT FROM tidegate.outbox AS o WHERE o.topic = $1 AND o.failed_at IS NULL ORDER BY o.id OFFSET $2
);

-- name: events_wait
-- Whether more than some records wait for some topics. $1 topics, $2 how many may.
SELECT EXISTS (
    SELECT FROM tidegate.outbox AS o WHERE o.topic = ANY($1::text[]) AND o.failed_at IS NULL OFFSET $2
);

-- name: stop_for_flood
-- The topic rests in every worker of the job until somebody releases it. No row: it is stopped already.
-- $1 job, $2 topic, $3 why.
INSERT INTO tidegate.intent (kind, job, topic, reason, actor)
SELECT 'flood', $1, $2, $3, 'tidegate'
WHERE NOT EXISTS (
    SELECT FROM tidegate.intent WHERE job = $1 AND kind = 'flood' AND topic = $2 AND ended_at IS NULL
)
RETURNING id;

-- name: flood_allowances
-- Up to where (exclusive) dead letters were foreseen by whoever released a flood. $1 job.
SELECT topic, topic_id, partition, until_offset
FROM tidegate.flood_allowance
WHERE job = $1;
