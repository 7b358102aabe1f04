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
SELECT topic, partition, next_offset, end_offset, epoch, topic_id, owner, moved_at
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
