-- SQL of the import of letters from their topic. Every query is PREPAREd by a test.

-- name: known_letters
-- Which of some letters are there. $1 letters.
SELECT d.id FROM tidegate.dead_letter AS d WHERE d.id = ANY ($1::uuid[]);

-- name: restore_letters
-- Writes letters as they were; one that is there stays as it is. $1 job; $2 … $33 one array per column; $34 … $36 the
-- headers of all letters, flat: place of the letter in the chunk (from 1), name, value. Returns those that were written.
WITH headers AS (
    SELECT
        h.place,
        array_agg(h.name ORDER BY h.nth) AS names,
        array_agg(h.value ORDER BY h.nth) AS values
    FROM unnest($34::integer[], $35::bytea[], $36::bytea[]) WITH ORDINALITY AS h (place, name, value, nth)
    GROUP BY h.place
)
INSERT INTO tidegate.dead_letter (
    id, job, topic, topic_id, partition, "offset", recorded_at, key, value, header_names, header_values,
    event_id, event_type, claimed_bucket, claimed_id, tenant, brand, correlation_id, traceparent,
    reason, error_class, error_message, stack, fingerprint, handler, service_version, attempts, occurrences,
    replay_count, backfill, first_failed_at, last_failed_at, has_payload, state, decided_at
)
SELECT
    l.id, $1, l.topic, l.topic_id, l.partition, l."offset", l.recorded_at, l.key, l.value,
    coalesce(h.names, '{}'), coalesce(h.values, '{}'),
    l.event_id, l.event_type, l.claimed_bucket, l.claimed_id, l.tenant, l.brand, l.correlation_id, l.traceparent,
    l.reason, l.error_class, l.error_message, l.stack, l.fingerprint, l.handler, l.service_version, l.attempts,
    l.occurrences, l.replay_count, l.backfill, l.first_failed_at, l.last_failed_at, l.has_payload, l.state, l.decided_at
FROM unnest(
    $2::uuid[], $3::text[], $4::uuid[], $5::integer[], $6::bigint[], $7::timestamptz[], $8::bytea[], $9::bytea[],
    $10::text[], $11::text[], $12::date[], $13::uuid[], $14::text[], $15::text[], $16::text[], $17::text[],
    $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::integer[],
    $26::integer[], $27::integer[], $28::boolean[], $29::timestamptz[], $30::timestamptz[], $31::boolean[],
    $32::text[], $33::timestamptz[]
) WITH ORDINALITY AS l (
    id, topic, topic_id, partition, "offset", recorded_at, key, value,
    event_id, event_type, claimed_bucket, claimed_id, tenant, brand, correlation_id, traceparent,
    reason, error_class, error_message, stack, fingerprint, handler, service_version, attempts,
    occurrences, replay_count, backfill, first_failed_at, last_failed_at, has_payload, state, decided_at, place
)
LEFT JOIN headers AS h ON h.place = l.place
-- Two transactions that touch the same letters lock them in the same order.
ORDER BY l.id
ON CONFLICT DO NOTHING
RETURNING id;
