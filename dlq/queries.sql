-- SQL of dead letters, of parking and of corrections. Every query is PREPAREd by a test.

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
        -- The times of a letter only grow, whatever the clocks say: by them the DLQ topic's records are put in order. The
        -- second microsecond is for an outcome that was told one after the failure.
        last_failed_at = greatest(
            excluded.last_failed_at,
            d.last_failed_at + interval '2 microseconds',
            d.decided_at + interval '1 microsecond'
        ),
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
        -- A replay in which it failed may have made its claim anew.
        claimed_on = excluded.claimed_on,
        -- A live letter that a backfill meets again stays a live letter.
        backfill = d.backfill AND excluded.backfill,
        -- What had been put right fails again; every other state is somebody's decision and stays.
        state = CASE d.state WHEN 'resolved' THEN 'dead' ELSE d.state END
    -- An erased letter stays empty: its record may be in the hands of somebody who has not heard of it.
    WHERE d.erased_at IS NULL
    RETURNING
        d.id, d.topic, d.topic_id, d.partition, d."offset", d.first_failed_at, d.last_failed_at, d.occurrences,
        d.replay_count, d.backfill, d.event_id, d.event_type, d.claimed_bucket, d.claimed_id
)
SELECT
    l.id, w.id AS letter_id, w.first_failed_at, w.last_failed_at, w.occurrences, w.replay_count, w.backfill, w.event_id,
    w.event_type, w.claimed_bucket, w.claimed_id
FROM written AS w
JOIN letters AS l USING (topic, topic_id, partition, "offset");

-- name: mark_without_payload
-- Letters of which nothing but the place could be kept are not letters of records without a value. $1 letters.
UPDATE tidegate.dead_letter AS d SET has_payload = false WHERE d.id = ANY ($1::uuid[]) AND d.key IS NULL AND d.value IS NULL;

-- name: lock_blocked_keys
-- Those of some keys that are blocked in one of some topics, locked in one order. $1 job, $2 topics, $3 keys.
SELECT b.topic, b.key, b.parked
FROM tidegate.blocked_key AS b
-- ANY, not a join with the arrays: whatever plan is kept, no more than the keys asked for are looked at.
WHERE b.job = $1 AND b.topic = ANY ($2::text[]) AND b.key = ANY ($3::uuid[])
ORDER BY b.topic, b.key
FOR UPDATE;

-- name: sequences_ahead
-- Where the sequences of some blocked keys begin, of those that stand in one partition and behind given offsets as a
-- whole. $1 job, $2 topics, $3 keys, $4 the offsets, $5 topic id, $6 partition.
SELECT k.topic, k.key, min(l."offset") AS starts_at
FROM unnest($2::text[], $3::uuid[], $4::bigint[]) AS k (topic, key, "offset")
JOIN tidegate.blocking_letter AS l ON l.job = $1 AND l.topic = k.topic AND l.key = k.key
JOIN tidegate.dead_letter AS d ON d.id = l.letter
GROUP BY k.topic, k.key, k."offset"
HAVING
    min(l."offset") > k."offset"
    AND bool_and(d.topic_id = $5 AND d.partition = $6 AND d."offset" = l."offset")
    AND NOT EXISTS (
        SELECT
        FROM tidegate.parked AS p
        WHERE p.job = $1 AND p.topic = k.topic AND p.order_key = k.key
            AND (p.topic_id <> $5 OR p.partition <> $6 OR p."offset" < min(l."offset"))
    );

-- name: parked_now
-- How many events are parked, of a key and of the whole job. $1 job, $2 topic, $3 key.
SELECT
    coalesce(sum(b.parked) FILTER (WHERE b.topic = $2 AND b.key = $3), 0)::bigint AS of_key,
    coalesce(sum(b.parked), 0)::bigint AS of_job
FROM tidegate.blocked_key AS b
WHERE b.job = $1;

-- name: decided_letters
-- Which offsets of a range have letters that were erased or are in one of some states.
-- $1 job, $2 topic, $3 topic id, $4 partition, $5 first offset, $6 last offset, $7 states.
SELECT d."offset"
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.topic = $2 AND d.topic_id = $3 AND d.partition = $4 AND d."offset" BETWEEN $5 AND $6
    AND (d.state = ANY ($7::text[]) OR d.erased_at IS NOT NULL);

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

-- name: lock_letter_state
-- The state of a letter, locked until the transaction ends. $1 letter.
SELECT d.state FROM tidegate.dead_letter AS d WHERE d.id = $1 FOR UPDATE;

-- name: keep_edit
-- What a letter's record says from now on; an earlier edit is replaced, a discard stays (then no row comes back).
-- $1 letter, $2 value, $3 reason, $4 who.
INSERT INTO tidegate.correction AS c (
    job, topic, topic_id, partition, "offset", kind, value, letter, reason, made_by
)
SELECT d.job, d.topic, d.topic_id, d.partition, d."offset", 'edit', $2, d.id, $3, $4
FROM tidegate.dead_letter AS d
WHERE d.id = $1
ON CONFLICT (job, topic, topic_id, partition, "offset") DO UPDATE SET
    value = excluded.value,
    letter = excluded.letter,
    reason = excluded.reason,
    made_by = excluded.made_by,
    made_at = excluded.made_at
WHERE c.kind = 'edit'
RETURNING c.letter;

-- name: keep_discards
-- The records of some letters are passed by from now on; an edit of one is replaced, an earlier discard stays.
-- $1 letters, $2 reason, $3 who. Returns those that were not discarded before.
INSERT INTO tidegate.correction AS c (job, topic, topic_id, partition, "offset", kind, letter, reason, made_by)
SELECT d.job, d.topic, d.topic_id, d.partition, d."offset", 'discard', d.id, $2, $3
FROM tidegate.dead_letter AS d
WHERE d.id = ANY ($1::uuid[])
-- Two transactions that touch the same places lock them in the same order.
ORDER BY d.job, d.topic, d.topic_id, d.partition, d."offset"
ON CONFLICT (job, topic, topic_id, partition, "offset") DO UPDATE SET
    kind = 'discard',
    value = NULL,
    letter = excluded.letter,
    reason = excluded.reason,
    made_by = excluded.made_by,
    made_at = excluded.made_at
WHERE c.kind = 'edit'
RETURNING c.letter;

-- name: corrections_from
-- What was decided about records of a partition from an offset on, also while another generation of the job was the
-- live one; of two decisions about a record the one that counts comes last: a discard is final.
-- $1 job, $2 topic, $3 topic id, $4 partition, $5 first offset.
SELECT c."offset", c.kind, c.value
FROM tidegate.job AS asking
JOIN tidegate.job AS j ON j.service = asking.service AND j.code = asking.code
JOIN tidegate.correction AS c ON c.job = j.id
WHERE asking.id = $1 AND c.topic = $2 AND c.topic_id = $3 AND c.partition = $4 AND c."offset" >= $5
ORDER BY c.kind = 'discard', c.made_at;
