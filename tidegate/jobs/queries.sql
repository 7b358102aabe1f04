-- SQL of the jobs. Every query is PREPAREd by a test.

-- name: take_relay_turn
-- True for one transaction at a time over all processes. The lock ends with the transaction, so it also works through a
-- pooler that gives every transaction another connection. $1 key of the lock.
SELECT pg_try_advisory_xact_lock($1)

-- name: pending_topics
-- Topics with records to relay. Walks the index from topic to topic, so a long backlog costs nothing.
WITH RECURSIVE topics AS (
    (SELECT o.topic FROM tidegate.outbox AS o WHERE o.failed_at IS NULL ORDER BY o.topic LIMIT 1)
    UNION ALL
    SELECT (
        SELECT o.topic FROM tidegate.outbox AS o
        WHERE o.failed_at IS NULL AND o.topic > t.topic
        ORDER BY o.topic LIMIT 1
    )
    FROM topics AS t
    WHERE t.topic IS NOT NULL
)
SELECT t.topic FROM topics AS t WHERE t.topic IS NOT NULL

-- name: pending_records
-- The oldest records of some topics, in id order: at most $2 records and about $3 bytes in all, shared fairly among the
-- topics of $1. A record larger than $3 comes alone. Sizes are read without fetching the values.
WITH heads AS (
    SELECT h.id, h.bytes, row_number() OVER (PARTITION BY h.topic ORDER BY h.id) AS nth
    FROM unnest($1::text[]) AS t (topic)
    CROSS JOIN LATERAL (
        SELECT o.id, o.topic, coalesce(octet_length(o.value), 0) AS bytes
        FROM tidegate.outbox AS o
        WHERE o.topic = t.topic AND o.failed_at IS NULL
        ORDER BY o.id
        LIMIT $2
    ) AS h
),
shared AS (
    SELECT
        h.id,
        row_number() OVER (ORDER BY h.nth, h.id) AS place,
        sum(h.bytes) OVER (ORDER BY h.nth, h.id) AS bytes_so_far
    FROM heads AS h
)
SELECT o.id, o.kind, o.topic, o.key, o.value, o.header_names, o.header_values
FROM shared AS s
JOIN tidegate.outbox AS o ON o.id = s.id
WHERE s.place = 1 OR (s.place <= $2 AND s.bytes_so_far <= $3)
ORDER BY o.id

-- name: forget_delivered
-- The records of $1 are in Kafka.
DELETE FROM tidegate.outbox WHERE id = ANY($1::bigint[])

-- name: set_aside
-- Kafka will never take these records: they wait for a person. $1 ids, $2 why, by id.
UPDATE tidegate.outbox AS o
SET failed_at = now(), error = r.error
FROM unnest($1::bigint[], $2::text[]) AS r (id, error)
WHERE o.id = r.id

-- name: outbox_backlog
-- How many records wait, for how long the oldest has, and how many were set aside. Counts to 100,000 and no further: what
-- watches over a long backlog must not read all of it every few seconds.
SELECT
    (
        SELECT count(*) FROM (SELECT FROM tidegate.outbox AS o WHERE o.failed_at IS NULL LIMIT 100000) AS w
    ) AS records,
    coalesce(
        (
            SELECT extract(epoch FROM now() - o.created_at)
            FROM tidegate.outbox AS o
            WHERE o.failed_at IS NULL
            ORDER BY o.id
            LIMIT 1
        ),
        0
    )::float8 AS oldest_age_seconds,
    (
        SELECT count(*) FROM (SELECT FROM tidegate.outbox AS o WHERE o.failed_at IS NOT NULL LIMIT 100000) AS s
    ) AS set_aside

-- name: live_positions
-- Where the live consumer of a job stands. $1 service, $2 job code. The newest generation is the one that readers see.
SELECT p.topic, p.partition, p.next_offset, p.topic_id, p.owner, p.moved_at
FROM tidegate.position AS p
WHERE p.run = 0
    AND p.job = (
        SELECT j.id FROM tidegate.job AS j WHERE j.service = $1 AND j.code = $2 ORDER BY j.generation DESC LIMIT 1
    )
ORDER BY p.topic, p.partition

-- name: create_checkpoint
-- One row per partition. $1 name, $2 topics, $3 partitions, $4 topic ids, $5 next offsets.
INSERT INTO tidegate.checkpoint (name, topic, partition, topic_id, next_offset)
SELECT $1, c.topic, c.partition, c.topic_id, c.next_offset
FROM unnest($2::text[], $3::integer[], $4::uuid[], $5::bigint[]) AS c (topic, partition, topic_id, next_offset)

-- name: read_checkpoint
-- $1 name.
SELECT c.topic, c.partition, c.topic_id, c.next_offset, c.created_at
FROM tidegate.checkpoint AS c
WHERE c.name = $1
ORDER BY c.topic, c.partition

-- name: list_checkpoints
-- All checkpoints, newest first.
SELECT
    c.name,
    min(c.created_at) AS created_at,
    array_agg(DISTINCT c.topic) AS topics,
    count(*) AS partitions
FROM tidegate.checkpoint AS c
GROUP BY c.name
ORDER BY min(c.created_at) DESC, c.name

-- name: delete_checkpoint
-- Returns how many partitions it had. $1 name.
WITH gone AS (DELETE FROM tidegate.checkpoint WHERE name = $1 RETURNING name)
SELECT count(*) FROM gone

-- name: close_expired
-- Pauses of a job whose time has passed have ended then. $1 job.
UPDATE tidegate.intent SET ended_at = until, ended_by = 'expiry' WHERE job = $1 AND ended_at IS NULL AND until <= now()

-- name: pauses_of_part
-- Standing pauses of exactly this part of a job, the longest first; `lasts`: at least for the seconds asked.
-- $1 job, $2 topic, $3 partition, $4 tenant, $5 service-wide, $6 seconds (NULL: until somebody resumes).
SELECT
    i.id, i.kind, i.topic, i.partition, i.tenant, i.reason, i.actor, i.started_at, i.until,
    extract(epoch FROM i.until - now())::float8 AS seconds_left,
    (i.until IS NULL OR coalesce(i.until >= now() + make_interval(secs => $6::float8), false)) AS lasts
FROM tidegate.intent AS i
WHERE i.job = $1 AND i.kind = 'pause' AND i.ended_at IS NULL AND i.service_wide = $5
    AND i.topic IS NOT DISTINCT FROM $2 AND i.partition IS NOT DISTINCT FROM $3 AND i.tenant IS NOT DISTINCT FROM $4
ORDER BY i.until DESC NULLS FIRST, i.id

-- name: start_pause
-- $1 job, $2 topic, $3 partition, $4 tenant, $5 service-wide, $6 reason, $7 actor, $8 seconds (NULL: until resumed).
INSERT INTO tidegate.intent (kind, job, topic, partition, tenant, service_wide, reason, actor, until)
VALUES ('pause', $1, $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8::float8))
RETURNING
    id, kind, topic, partition, tenant, reason, actor, started_at, until,
    extract(epoch FROM until - now())::float8 AS seconds_left

-- name: end_pauses
-- Ends the standing pauses of exactly this part of a job; where $5 only those that were made for all jobs at once.
-- $1 job, $2 topic, $3 partition, $4 tenant, $5 service-wide, $6 actor.
UPDATE tidegate.intent AS i
SET ended_at = now(), ended_by = $6
WHERE i.job = $1 AND i.kind = 'pause' AND i.ended_at IS NULL AND (i.service_wide OR NOT $5)
    AND i.topic IS NOT DISTINCT FROM $2 AND i.partition IS NOT DISTINCT FROM $3 AND i.tenant IS NOT DISTINCT FROM $4
RETURNING
    i.id, i.kind, i.topic, i.partition, i.tenant, i.reason, i.actor, i.started_at, i.until,
    extract(epoch FROM i.until - now())::float8 AS seconds_left

-- name: service_intents
-- What stands for the jobs of a service. $1 service.
SELECT
    j.code, i.id, i.kind, i.topic, i.partition, i.tenant, i.reason, i.actor, i.started_at, i.until,
    extract(epoch FROM i.until - now())::float8 AS seconds_left
FROM tidegate.intent AS i
JOIN tidegate.job AS j ON j.id = i.job
WHERE j.service = $1 AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
ORDER BY j.code, i.id

-- name: partitions_of_job
-- The partitions that the live consumer of a job has had a position in. $1 job.
SELECT p.topic, p.partition FROM tidegate.position AS p WHERE p.job = $1 AND p.run = 0 ORDER BY p.topic, p.partition

-- name: backfill_at_work
-- The job's backfill that a process works on now. $1 job.
SELECT b.id FROM tidegate.backfill AS b WHERE b.job = $1 AND b.state = 'running' AND b.lease_until > now()

-- name: floods_of_job
-- Topics of a job that are stopped for a flood of dead letters. $1 service, $2 job code.
SELECT
    j.id AS job, i.topic, i.reason, i.started_at,
    (SELECT count(*) FROM tidegate.dead_letter AS d WHERE d.job = j.id AND d.topic = i.topic AND d.state = 'dead') AS dead
FROM tidegate.intent AS i
JOIN tidegate.job AS j ON j.id = i.job
WHERE j.service = $1 AND j.code = $2 AND i.kind = 'flood' AND i.ended_at IS NULL
ORDER BY i.id

-- name: release_flood
-- $1 job, $2 topic, $3 actor.
UPDATE tidegate.intent
SET ended_at = now(), ended_by = $3
WHERE job = $1 AND kind = 'flood' AND topic = $2 AND ended_at IS NULL
RETURNING id

-- name: allow_letters
-- Dead letters below these offsets are not counted again. $1 job, $2 topic, $3 topic id, $4 partitions, $5 offsets.
INSERT INTO tidegate.flood_allowance AS a (job, topic, topic_id, partition, until_offset)
SELECT $1, $2, $3, u.partition, u.until_offset
FROM unnest($4::int[], $5::bigint[]) AS u (partition, until_offset)
ON CONFLICT (job, topic, topic_id, partition) DO UPDATE SET until_offset = EXCLUDED.until_offset

-- name: letter_to_edit
-- A letter's record, whose it is, and what an earlier edit made of it. $1 service, $2 letter.
SELECT
    j.code, d.state, d.tenant, d.brand, d.topic, d.partition, d."offset", d.recorded_at, d.key, d.value, d.header_names,
    d.header_values, c.value AS corrected_value
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
WHERE d.id = $2 AND j.service = $1

-- name: run_of_letters
-- A run of a service, with what its letters belong to. $1 service, $2 run.
SELECT
    r.id, r.job, j.code, r.kind, r.reason, r.asked_by, r.letters,
    array_agg(DISTINCT d.tenant) AS tenants, array_agg(DISTINCT d.brand) AS brands
FROM tidegate.replay AS r
JOIN tidegate.job AS j ON j.id = r.job
LEFT JOIN tidegate.replay_letter AS l ON l.replay = r.id
LEFT JOIN tidegate.dead_letter AS d ON d.id = l.letter
WHERE j.service = $1 AND r.id = $2
GROUP BY r.id, j.code;

-- name: scopes_of_letters
-- Which tenants and brands some letters belong to. $1 letters.
SELECT
    coalesce(array_agg(DISTINCT d.tenant), '{}') AS tenants,
    coalesce(array_agg(DISTINCT d.brand), '{}') AS brands
FROM tidegate.dead_letter AS d
WHERE d.id = ANY ($1::uuid[]);

-- name: oldest_open
-- Since when something of a job is unfinished that may still bring older events: the oldest letter that nobody has decided
-- about, or an unfinished backfill; now, if there is neither. $1 job, $2 states of such letters.
SELECT least(
    (SELECT min(d.first_failed_at) FROM tidegate.dead_letter AS d WHERE d.job = $1 AND d.state = ANY ($2::text[])),
    (SELECT b.started_at FROM tidegate.backfill AS b WHERE b.job = $1 AND b.state = 'running'),
    now()
);
