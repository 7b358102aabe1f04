-- SQL of the dead letters. Every query is PREPAREd by a test.

-- name: lock_letters
-- Letters of a job's backfill are written by one transaction after the other. $1 kind of lock, $2 job.
SELECT pg_advisory_xact_lock($1, $2::integer);

-- name: letters_of_claims
-- Where the first letters of some events stand. $1 job, $2 buckets and $3 ids of the events' claims.
SELECT DISTINCT ON (d.claimed_bucket, d.claimed_id)
    d.claimed_bucket, d.claimed_id, d.topic, d.topic_id, d.partition, d."offset"
FROM unnest($2::date[], $3::uuid[]) AS c (bucket, id)
JOIN tidegate.dead_letter AS d ON d.claimed_id = c.id AND d.claimed_bucket = c.bucket AND d.job = $1
ORDER BY d.claimed_bucket, d.claimed_id, d.first_failed_at, d.id;

-- name: record_letters
-- Writes a batch of letters; one that exists gains an occurrence and its newest error.
-- $1 job, $2 backfill, $3 service version, $4 now; $5 … $27 one array per column; $28 … $30 the headers of all letters,
-- flat: place of the letter in the batch (from 1), name, value. Returns the given id with what the row holds.
WITH headers AS (
    SELECT
        h.place,
        array_agg(h.name ORDER BY h.nth) AS names,
        array_agg(h.value ORDER BY h.nth) AS values
    FROM unnest($28::integer[], $29::bytea[], $30::bytea[]) WITH ORDINALITY AS h (place, name, value, nth)
    GROUP BY h.place
),
letters AS (
    SELECT l.*
    FROM unnest(
        $5::uuid[], $6::text[], $7::uuid[], $8::integer[], $9::bigint[], $10::timestamptz[], $11::bytea[], $12::bytea[],
        $13::text[], $14::text[], $15::date[], $16::uuid[], $17::text[], $18::text[], $19::text[], $20::text[],
        $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::integer[]
    ) WITH ORDINALITY AS l (
        id, topic, topic_id, partition, "offset", recorded_at, key, value,
        event_id, event_type, claimed_bucket, claimed_id, tenant, brand, correlation_id, traceparent,
        reason, error_class, error_message, stack, fingerprint, handler, attempts, place
    )
),
written AS (
    INSERT INTO tidegate.dead_letter AS d (
        id, job, topic, topic_id, partition, "offset", recorded_at, key, value, header_names, header_values,
        event_id, event_type, claimed_bucket, claimed_id, tenant, brand, correlation_id, traceparent,
        reason, error_class, error_message, stack, fingerprint, handler, service_version, attempts, backfill,
        first_failed_at, last_failed_at
    )
    SELECT
        l.id, $1, l.topic, l.topic_id, l.partition, l."offset", l.recorded_at, l.key, l.value,
        coalesce(h.names, '{}'), coalesce(h.values, '{}'),
        l.event_id, l.event_type, l.claimed_bucket, l.claimed_id, l.tenant, l.brand, l.correlation_id, l.traceparent,
        l.reason, l.error_class, l.error_message, l.stack, l.fingerprint, l.handler, $3, l.attempts, $2,
        $4, $4
    FROM letters AS l
    LEFT JOIN headers AS h ON h.place = l.place
    -- Two transactions that touch the same letters lock them in the same order.
    ORDER BY l.id
    ON CONFLICT (job, topic, topic_id, partition, "offset") DO UPDATE SET
        occurrences = d.occurrences + 1,
        last_failed_at = excluded.last_failed_at,
        reason = excluded.reason,
        error_class = excluded.error_class,
        error_message = excluded.error_message,
        stack = excluded.stack,
        fingerprint = excluded.fingerprint,
        handler = excluded.handler,
        service_version = excluded.service_version,
        attempts = excluded.attempts,
        event_id = coalesce(excluded.event_id, d.event_id),
        event_type = coalesce(excluded.event_type, d.event_type),
        claimed_bucket = coalesce(excluded.claimed_bucket, d.claimed_bucket),
        claimed_id = coalesce(excluded.claimed_id, d.claimed_id),
        -- A live letter that a backfill meets again stays a live letter.
        backfill = d.backfill AND excluded.backfill,
        -- What had been put right fails again; every other state is somebody's decision and stays.
        state = CASE d.state WHEN 'resolved' THEN 'dead' ELSE d.state END
    RETURNING d.id, d.topic, d.topic_id, d.partition, d."offset", d.first_failed_at, d.replay_count
)
SELECT l.id, w.id AS letter_id, w.first_failed_at, w.replay_count
FROM written AS w
JOIN letters AS l USING (topic, topic_id, partition, "offset");

-- name: lock_blocked_keys
-- Those of some keys that are blocked, locked in one order. $1 job, $2 topics, $3 keys (distinct pairs).
SELECT b.topic, b.key, b.parked
FROM tidegate.blocked_key AS b
JOIN unnest($2::text[], $3::uuid[]) AS k (topic, key) ON k.topic = b.topic AND k.key = b.key
WHERE b.job = $1
ORDER BY b.topic, b.key
FOR UPDATE OF b;

-- name: parked_now
-- How many events are parked, of a key and of the whole job. $1 job, $2 topic, $3 key.
SELECT
    coalesce(sum(b.parked) FILTER (WHERE b.topic = $2 AND b.key = $3), 0)::bigint AS of_key,
    coalesce(sum(b.parked), 0)::bigint AS of_job
FROM tidegate.blocked_key AS b
WHERE b.job = $1;

-- name: decided_letters
-- Which offsets of a range have letters in one of some states.
-- $1 job, $2 topic, $3 topic id, $4 partition, $5 first offset, $6 last offset, $7 states.
SELECT d."offset"
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.topic = $2 AND d.topic_id = $3 AND d.partition = $4 AND d."offset" BETWEEN $5 AND $6
    AND d.state = ANY ($7::text[]);

-- name: block_keys
-- The keys are blocked and locked, in one order; returns which turn this is for each. $1 job, $2 topics, $3 keys.
INSERT INTO tidegate.blocked_key AS b (job, topic, key)
SELECT $1, k.topic, k.key
FROM unnest($2::text[], $3::uuid[]) AS k (topic, key)
ORDER BY k.topic, k.key
ON CONFLICT (job, topic, key) DO UPDATE SET turns = b.turns + 1
RETURNING topic, key, turns;

-- name: add_letters
-- Dead letters at the end of their keys' sequences. $1 job, $2 letters, $3 topics, $4 keys, $5 turns, $6 offsets.
INSERT INTO tidegate.blocking_letter (letter, job, topic, key, turn, "offset")
SELECT l.letter, $1, l.topic, l.key, l.turn, l."offset"
FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::bigint[], $6::bigint[]) AS l (letter, topic, key, turn, "offset")
ORDER BY l.letter
ON CONFLICT (letter, topic, key) DO NOTHING;

-- name: add_events
-- Events at the end of their keys' sequences, and their count. $1 job; $2 … $17 one array per column; $18 … $20 the
-- headers of all events, flat: place of the event in the batch (from 1), name, value.
WITH headers AS (
    SELECT
        h.place,
        array_agg(h.name ORDER BY h.nth) AS names,
        array_agg(h.value ORDER BY h.nth) AS values
    FROM unnest($18::integer[], $19::bytea[], $20::bytea[]) WITH ORDINALITY AS h (place, name, value, nth)
    GROUP BY h.place
),
added AS (
    INSERT INTO tidegate.parked (
        job, topic, order_key, waits_for, topic_id, partition, "offset", recorded_at, key, value,
        header_names, header_values, event_id, event_type, tenant, brand, claimed_bucket, claimed_id, turn
    )
    SELECT
        $1, e.topic, e.order_key, e.waits_for, e.topic_id, e.partition, e."offset", e.recorded_at, e.key, e.value,
        coalesce(h.names, '{}'), coalesce(h.values, '{}'),
        e.event_id, e.event_type, e.tenant, e.brand, e.claimed_bucket, e.claimed_id, e.turn
    FROM unnest(
        $2::text[], $3::uuid[], $4::uuid[], $5::uuid[], $6::integer[], $7::bigint[], $8::timestamptz[], $9::bytea[],
        $10::bytea[], $11::text[], $12::text[], $13::text[], $14::text[], $15::date[], $16::uuid[], $17::bigint[]
    ) WITH ORDINALITY AS e (
        topic, order_key, waits_for, topic_id, partition, "offset", recorded_at, key, value,
        event_id, event_type, tenant, brand, claimed_bucket, claimed_id, turn, place
    )
    LEFT JOIN headers AS h ON h.place = e.place
    ORDER BY e.place
    ON CONFLICT (job, topic, topic_id, partition, "offset") DO NOTHING
    RETURNING topic, order_key
)
UPDATE tidegate.blocked_key AS b
SET parked = b.parked + a.events
FROM (SELECT topic, order_key, count(*) AS events FROM added GROUP BY topic, order_key) AS a
WHERE b.job = $1 AND b.topic = a.topic AND b.key = a.order_key;

-- name: head_of_key
-- What comes first in a key's sequence. $1 job, $2 topic, $3 key.
(
    SELECT l.letter, NULL::bigint AS parked, l.turn, l."offset"
    FROM tidegate.blocking_letter AS l
    WHERE l.job = $1 AND l.topic = $2 AND l.key = $3
    ORDER BY l.turn, l."offset"
    LIMIT 1
)
UNION ALL
(
    SELECT NULL, p.id, p.turn, p."offset"
    FROM tidegate.parked AS p
    WHERE p.job = $1 AND p.topic = $2 AND p.order_key = $3
    ORDER BY p.turn, p."offset"
    LIMIT 1
)
ORDER BY turn, "offset"
LIMIT 1;

-- name: keys_of_letter
-- The keys that a letter blocks, in the order in which they are locked. $1 letter.
SELECT l.topic, l.key FROM tidegate.blocking_letter AS l WHERE l.letter = $1 ORDER BY l.topic, l.key;

-- name: keys_behind
-- Keys with events that wait for another key. $1 job, $2 topic, $3 that other key.
SELECT DISTINCT p.order_key FROM tidegate.parked AS p WHERE p.job = $1 AND p.topic = $2 AND p.waits_for = $3;

-- name: take_out_letter
-- A letter leaves the sequence of a key. $1 letter, $2 topic, $3 key.
DELETE FROM tidegate.blocking_letter AS l WHERE l.letter = $1 AND l.topic = $2 AND l.key = $3;

-- name: take_out_event
-- A parked event leaves the sequence of its key. $1 job, $2 topic, $3 key, $4 its number.
WITH gone AS (
    DELETE FROM tidegate.parked AS p WHERE p.id = $4 AND p.job = $1 AND p.topic = $2 AND p.order_key = $3 RETURNING 1
)
UPDATE tidegate.blocked_key AS b
SET parked = b.parked - 1
WHERE b.job = $1 AND b.topic = $2 AND b.key = $3 AND EXISTS (SELECT FROM gone);

-- name: free_key
-- The key is free if nothing is left of its sequence. $1 job, $2 topic, $3 key.
DELETE FROM tidegate.blocked_key AS b
WHERE b.job = $1 AND b.topic = $2 AND b.key = $3 AND b.parked = 0
    AND NOT EXISTS (
        SELECT FROM tidegate.blocking_letter AS l WHERE l.job = b.job AND l.topic = b.topic AND l.key = b.key
    )
RETURNING true;
