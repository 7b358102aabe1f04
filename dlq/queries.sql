-- SQL of the dead letters. Every query is PREPAREd by a test.

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
JOIN letters AS l USING (topic, topic_id, partition, "offset")
