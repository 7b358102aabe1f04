-- name: begin_positions
-- First start only: writes where a job begins, before its first fetch. Rows that exist stay as they are.
-- $1 job, $2 run, $3 topics, $4 partitions, $5 next offsets, $6 end offsets (NULL for the live run), $7 topic ids.
INSERT INTO tidegate.position (job, run, topic, partition, next_offset, end_offset, topic_id)
SELECT $1, $2, p.topic, p.partition, p.next_offset, p.end_offset, p.topic_id
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::uuid[])
    AS p (topic, partition, next_offset, end_offset, topic_id)
ON CONFLICT DO NOTHING;

-- name: take_over
-- The caller owns the position from now on: every earlier owner's settle finds another epoch.
-- $1 job, $2 run, $3 topic, $4 partition, $5 owner. No row: the position was never begun.
UPDATE tidegate.position
SET epoch = epoch + 1, owner = $5
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4
RETURNING epoch, next_offset, end_offset, topic_id;

-- name: read_position
-- $1 job, $2 run, $3 topic, $4 partition.
SELECT epoch, next_offset, end_offset, topic_id
FROM tidegate.position
WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4;

-- name: read_positions
-- All positions of a job's run. $1 job, $2 run.
SELECT topic, partition, epoch, next_offset, end_offset, topic_id
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
-- $1 id, $2 holder, $3 state, $4 records, $5 dead letters.
UPDATE tidegate.backfill
SET state = $3, finished_at = now(), records = records + $4, dead_letters = dead_letters + $5
WHERE id = $1 AND holder = $2 AND state = 'running'
RETURNING id;
