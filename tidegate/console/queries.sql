-- SQL of the status. Every query is PREPAREd by a test.

-- name: dead_letters_by_state
-- Dead letters per job and state. $1 service. Generations of a job count together.
SELECT j.code, d.state, count(*) AS letters
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1
GROUP BY j.code, d.state
ORDER BY j.code, d.state

-- name: newest_generations
-- A service's jobs as their readers see them now. $1 service.
SELECT DISTINCT ON (j.code) j.code, j.id, j.claims_since
FROM tidegate.job AS j
WHERE j.service = $1
ORDER BY j.code, j.generation DESC

-- name: claims_of_event
-- An id in every bucket of a job: the buckets are walked from one to the next, so each costs an index probe and the size
-- of the inbox does not matter. $1 job, $2 ids.
WITH RECURSIVE buckets AS (
    (SELECT i.bucket FROM tidegate.inbox AS i WHERE i.job = $1 ORDER BY i.bucket LIMIT 1)
    UNION ALL
    SELECT (
        SELECT i.bucket FROM tidegate.inbox AS i
        WHERE i.job = $1 AND i.bucket > b.bucket
        ORDER BY i.bucket LIMIT 1
    )
    FROM buckets AS b
    WHERE b.bucket IS NOT NULL
)
SELECT i.id, i.bucket, i.claimed_on
FROM buckets AS b
JOIN tidegate.inbox AS i ON i.job = $1 AND i.bucket = b.bucket AND i.id = ANY($2::uuid[])
ORDER BY i.claimed_on, i.bucket

-- name: letters_of_event
-- The newest dead letters of an event id. $1 job, $2 event id, $3 tenant, $4 brand (NULL: any).
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.event_id = $2 AND ($3::text IS NULL OR d.tenant = $3) AND ($4::text IS NULL OR d.brand = $4)
ORDER BY d.last_failed_at DESC
LIMIT 50

-- name: letters_of_key
-- The newest dead letters of a record key. $1 job, $2 key, $3 topic (NULL: any).
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.key = $2 AND ($3::text IS NULL OR d.topic = $3)
ORDER BY d.last_failed_at DESC
LIMIT 50

-- name: letters_at_place
-- The dead letter of a record. $1 job, $2 topic, $3 topic id, $4 partition, $5 offset.
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.topic = $2 AND d.topic_id = $3 AND d.partition = $4 AND d."offset" = $5

-- name: skipped_range_at
-- The newest decision to pass an offset unread. $1 job, $2 topic, $3 topic id, $4 partition, $5 offset.
SELECT s.first_offset, s.last_offset, s.cause, s.actor, s.reason, s.skipped_at
FROM tidegate.skipped_range AS s
WHERE s.job = $1 AND s.topic = $2 AND s.topic_id = $3 AND s.partition = $4
    AND s.first_offset <= $5 AND s.last_offset >= $5
ORDER BY s.skipped_at DESC
LIMIT 1

-- name: outbox_with_header
-- What waits in the outbox with one of some values in a header. The outbox is a queue, short unless Kafka is away.
-- $1 header, $2 values.
SELECT o.id, o.kind, o.topic, o.created_at, o.failed_at IS NOT NULL AS is_set_aside, h.value
FROM tidegate.outbox AS o
CROSS JOIN LATERAL unnest(o.header_names, o.header_values) AS h (name, value)
WHERE o.header_values && $2::bytea[] AND h.name = $1 AND h.value = ANY($2::bytea[])
ORDER BY o.id
LIMIT 50

-- name: presence_of_job
-- What the owners of a job's partitions last said. $1 service, $2 job code. The newest generation, as readers see it.
SELECT
    p.topic, p.partition, p.owner, p.state, p.detail,
    extract(epoch FROM now() - p.since)::float8 AS since_seconds,
    extract(epoch FROM now() - p.seen_at)::float8 AS seen_seconds
FROM tidegate.presence AS p
WHERE p.job = (
    SELECT j.id FROM tidegate.job AS j WHERE j.service = $1 AND j.code = $2 ORDER BY j.generation DESC LIMIT 1
)
ORDER BY p.topic, p.partition

-- name: lock_job
-- The number of a job, locked: what is decided about it by hand is decided one after the other. $1 service, $2 code.
SELECT j.id
FROM tidegate.job AS j
WHERE j.service = $1 AND j.code = $2
ORDER BY j.generation DESC
LIMIT 1
FOR NO KEY UPDATE

-- name: lock_positions
-- Live positions, locked: a settle under way ends first, and the next finds what was made of them.
-- $1 job, $2 topics, $3 partitions.
SELECT p.topic, p.partition, p.next_offset, p.topic_id
FROM tidegate.position AS p
JOIN unnest($2::text[], $3::int[]) AS w (topic, partition) ON w.topic = p.topic AND w.partition = p.partition
WHERE p.job = $1 AND p.run = 0
ORDER BY p.topic, p.partition
FOR UPDATE OF p

-- name: move_position
-- A live position by hand. The epoch grows, so a live owner's settle fails its fence and it takes the position anew; who
-- died where it stood before is forgotten. $1 job, $2 topic, $3 partition, $4 new offset, $5 new topic id.
UPDATE tidegate.position
SET
    next_offset = $4, topic_id = $5, epoch = epoch + 1, owner = NULL, taken_offset = NULL, deaths = 0,
    attempt_offset = NULL, attempts = 0, moved_at = now()
WHERE job = $1 AND run = 0 AND topic = $2 AND partition = $3

-- name: keep_skipped_range
-- Offsets that are passed unread by somebody's decision. $1 job, $2 topic, $3 topic id, $4 partition, $5 first offset,
-- $6 last offset, $7 cause, $8 actor, $9 reason.
INSERT INTO tidegate.skipped_range (
    job, topic, topic_id, partition, first_offset, last_offset, cause, actor, reason
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: skipped_ranges
-- What a job passed unread, newest first. $1 service, $2 code.
SELECT
    s.topic, s.partition, s.topic_id, s.first_offset, s.last_offset, s.cause, s.actor, s.reason, s.skipped_at
FROM tidegate.skipped_range AS s
JOIN tidegate.job AS j ON j.id = s.job
WHERE j.service = $1 AND j.code = $2
ORDER BY s.skipped_at DESC, s.id DESC
LIMIT 1000
