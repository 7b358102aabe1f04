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
-- How many records wait, for how long the oldest has, and how many were set aside.
SELECT
    count(*) FILTER (WHERE o.failed_at IS NULL) AS records,
    coalesce(extract(epoch FROM now() - min(o.created_at) FILTER (WHERE o.failed_at IS NULL)), 0)::float8
        AS oldest_age_seconds,
    count(*) FILTER (WHERE o.failed_at IS NOT NULL) AS set_aside
FROM tidegate.outbox AS o
