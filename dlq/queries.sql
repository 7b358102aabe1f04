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

-- name: start_run
-- A run over some letters of a job. $1 job, $2 kind, $3 state, $4 digest, $5 how many letters, $6 forced, $7 reason, $8 asked by.
INSERT INTO tidegate.replay (job, kind, state, digest, letters, is_forced, reason, asked_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id;

-- name: reserve_letters
-- Letters become the run's own; those that are in another state by now are left alone. Returns how many it has got.
-- $1 run, $2 job, $3 letters, $4 states that may be taken.
WITH mine AS MATERIALIZED (
    SELECT d.id, d.state
    FROM tidegate.dead_letter AS d
    WHERE d.id = ANY ($3::uuid[]) AND d.job = $2 AND array_position($4::text[], d.state) IS NOT NULL
    -- Two runs that want the same letters lock them in the same order.
    ORDER BY d.id
    FOR UPDATE
),
taken AS (
    UPDATE tidegate.dead_letter AS d SET state = 'replaying' FROM mine AS m WHERE d.id = m.id RETURNING d.id
),
reserved AS (
    INSERT INTO tidegate.replay_letter AS r (replay, letter, was)
    SELECT $1, m.id, m.state
    FROM mine AS m
    JOIN taken USING (id)
    ON CONFLICT (replay, letter) DO UPDATE SET outcome = NULL, decided_at = NULL, was = excluded.was
    RETURNING 1
)
SELECT count(*) FROM reserved;

-- name: runs_of_letters
-- Which unfinished runs have some letters. $1 letters.
SELECT DISTINCT r.replay FROM tidegate.replay_letter AS r WHERE r.letter = ANY ($1::uuid[]) AND r.outcome IS NULL ORDER BY 1;

-- name: read_run
-- One run of a service. $1 service, $2 run.
SELECT
    r.id, j.code AS job, r.kind, r.state, r.digest, r.letters, r.parked, r.failed_events, r.is_forced, r.reason, r.asked_by, r.approved_by,
    r.stop_asked_by, r.holder, r.created_at, r.finished_at, r.state = 'running' AND r.lease_until <= now() AS is_stalled
FROM tidegate.replay AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND r.id = $2;

-- name: recent_runs
-- The newest runs of a service. $1 service, $2 job code or NULL, $3 how many.
SELECT
    r.id, j.code AS job, r.kind, r.state, r.digest, r.letters, r.parked, r.failed_events, r.is_forced, r.reason, r.asked_by, r.approved_by,
    r.stop_asked_by, r.holder, r.created_at, r.finished_at, r.state = 'running' AND r.lease_until <= now() AS is_stalled
FROM tidegate.replay AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND ($2::text IS NULL OR j.code = $2)
ORDER BY r.id DESC
LIMIT $3;

-- name: outcomes_of_run
-- What became of the letters of a run; outcome NULL: nothing yet. $1 run.
SELECT r.outcome, count(*) AS letters FROM tidegate.replay_letter AS r WHERE r.replay = $1 GROUP BY r.outcome;

-- name: failures_of_run
-- How the letters failed that failed again in a run, the most frequent first, with the error of one of them.
-- $1 run, $2 how many kinds.
WITH kinds AS (
    SELECT d.reason, d.fingerprint, count(*) AS letters, min(d.id::text)::uuid AS sample
    FROM tidegate.replay_letter AS r
    JOIN tidegate.dead_letter AS d ON d.id = r.letter
    WHERE r.replay = $1 AND r.outcome = 'failed'
    GROUP BY d.reason, d.fingerprint
    ORDER BY letters DESC, d.fingerprint
    LIMIT $2
)
SELECT k.reason, k.fingerprint, d.error_class, d.error_message, k.letters, k.sample
FROM kinds AS k
JOIN tidegate.dead_letter AS d ON d.id = k.sample
ORDER BY k.letters DESC, k.fingerprint;

-- name: lock_run
-- A run, locked until the transaction ends: its runner's transaction has come to its end. $1 job, $2 run.
SELECT r.state, r.is_forced, r.asked_by, r.approved_by, r.holder,
    r.state = 'running' AND r.lease_until > now() AS is_held
FROM tidegate.replay AS r
WHERE r.job = $1 AND r.id = $2
FOR UPDATE;

-- name: is_held
-- Whether a run has a runner that lives. $1 run.
SELECT r.state = 'running' AND r.lease_until > now() FROM tidegate.replay AS r WHERE r.id = $1;

-- name: stalled_runs
-- Runs of a job whose runners are gone. $1 job.
SELECT r.id FROM tidegate.replay AS r WHERE r.job = $1 AND r.state = 'running' AND r.lease_until <= now();

-- name: lock_undecided_letters
-- The letters that some runs have yet to decide, locked in the order in which a runner locks them. $1 runs.
SELECT
FROM tidegate.replay_letter AS r
JOIN tidegate.dead_letter AS d ON d.id = r.letter
WHERE r.replay = ANY ($1::bigint[]) AND r.outcome IS NULL
ORDER BY d.id
FOR UPDATE OF d;

-- name: lock_stalled_runs
-- Runs of a job whose runners are gone, locked. $1 job.
SELECT r.id FROM tidegate.replay AS r
WHERE r.job = $1 AND r.state = 'running' AND r.lease_until <= now()
ORDER BY r.id
FOR UPDATE;

-- name: take_run
-- The run is this holder's, under a new token. $1 run, $2 holder, $3 seconds of the lease.
UPDATE tidegate.replay AS r
SET
    state = 'running',
    token = r.token + 1,
    holder = $2,
    lease_until = clock_timestamp() + make_interval(secs => $3),
    stop_asked_by = NULL,
    finished_at = NULL
WHERE r.id = $1
RETURNING r.token;

-- name: hold_run
-- The lease lasts from now; who asked the run to stop, if anybody did. Nothing where it is another's, or has ended.
-- $1 run, $2 token, $3 seconds of the lease, $4 parked events that have been dealt with, $5 of which so many have failed.
UPDATE tidegate.replay AS r
SET
    lease_until = clock_timestamp() + make_interval(secs => $3),
    parked = r.parked + $4,
    failed_events = r.failed_events + $5
WHERE r.id = $1 AND r.token = $2 AND r.state = 'running'
RETURNING r.stop_asked_by;

-- name: end_run
-- The run has ended in a state. $1 run, $2 state.
UPDATE tidegate.replay AS r SET state = $2, holder = NULL, lease_until = NULL, finished_at = now() WHERE r.id = $1;

-- name: has_ended
-- Whether the run is in a state, under a token. $1 run, $2 token, $3 state.
SELECT EXISTS (SELECT FROM tidegate.replay AS r WHERE r.id = $1 AND r.token = $2 AND r.state = $3);

-- name: ask_to_stop
-- The runner of the run ends at its next batch. $1 run, $2 who asks.
UPDATE tidegate.replay AS r SET stop_asked_by = $2 WHERE r.id = $1;

-- name: approve_run
-- Somebody else agrees to the run, which anybody who may replay can begin now. $1 run, $2 who.
UPDATE tidegate.replay AS r SET approved_by = $2 WHERE r.id = $1;

-- name: outstanding_letters
-- The next letters of a run, in the order of their places. $1 run, $2 how many.
SELECT d.id, d.topic, d.topic_id, d.partition, d."offset"
FROM tidegate.replay_letter AS r
JOIN tidegate.dead_letter AS d ON d.id = r.letter
WHERE r.replay = $1 AND r.outcome IS NULL
ORDER BY d.topic, d.topic_id, d.partition, d."offset"
LIMIT $2;

-- name: undecided_letters
-- Letters of a run that were left as they are, to be tried when it is resumed. $1 run, $2 outcomes.
SELECT r.letter FROM tidegate.replay_letter AS r WHERE r.replay = $1 AND r.outcome = ANY ($2::text[]);

-- name: keys_of_letters
-- The keys that some letters block. $1 letters.
SELECT l.letter, l.topic, l.key FROM tidegate.blocking_letter AS l WHERE l.letter = ANY ($1::uuid[]) ORDER BY l.topic, l.key;

-- name: loose_keys
-- Keys of a job whose sequences begin with a parked event: what was before it is gone. $1 job.
SELECT b.topic, b.key
FROM tidegate.blocked_key AS b
CROSS JOIN LATERAL (
    SELECT p.turn, p."offset"
    FROM tidegate.parked AS p
    WHERE p.job = b.job AND p.topic = b.topic AND p.order_key = b.key
    ORDER BY p.turn, p."offset"
    LIMIT 1
) AS head
LEFT JOIN LATERAL (
    SELECT l.turn, l."offset"
    FROM tidegate.blocking_letter AS l
    WHERE l.job = b.job AND l.topic = b.topic AND l.key = b.key
    ORDER BY l.turn, l."offset"
    LIMIT 1
) AS letter ON true
-- Not NOT EXISTS, as in free_keys.
WHERE b.job = $1 AND b.parked > 0 AND ((letter.turn, letter."offset") < (head.turn, head."offset")) IS NOT TRUE
ORDER BY b.topic, b.key;

-- name: beginnings
-- The first entries of some sequences of a topic, in their order. is_shared: the letter blocks another key, too.
-- is_held_back: the parked event also waits for another key. $1 job, $2 topic, $3 keys, $4 how many entries of each.
SELECT k.key, s.letter, s.parked, s.turn, s."offset", s.topic_id, s.partition, s.is_shared, s.is_held_back
FROM unnest($3::uuid[]) AS k (key)
CROSS JOIN LATERAL (
    (
        SELECT
            l.letter, NULL::bigint AS parked, l.turn, l."offset", d.topic_id, d.partition,
            EXISTS (
                SELECT FROM tidegate.blocking_letter AS o
                WHERE o.letter = l.letter AND (o.topic, o.key) <> (l.topic, l.key)
            ) AS is_shared,
            false AS is_held_back
        FROM tidegate.blocking_letter AS l
        JOIN tidegate.dead_letter AS d ON d.id = l.letter
        WHERE l.job = $1 AND l.topic = $2 AND l.key = k.key
        ORDER BY l.turn, l."offset"
        LIMIT $4
    )
    UNION ALL
    (
        SELECT
            NULL, p.id, p.turn, p."offset", p.topic_id, p.partition, false,
            EXISTS (
                SELECT FROM tidegate.blocked_key AS b
                WHERE b.job = p.job AND b.topic = p.topic AND b.key = p.waits_for
            )
        FROM tidegate.parked AS p
        WHERE p.job = $1 AND p.topic = $2 AND p.order_key = k.key
        ORDER BY p.turn, p."offset"
        LIMIT $4
    )
    ORDER BY turn, "offset"
    LIMIT $4
) AS s
ORDER BY k.key, s.turn, s."offset";

-- name: letters_of_run
-- The records of letters that a run has yet to decide about; value: as corrected. $1 run, $2 letters.
WITH undecided AS MATERIALIZED (
    SELECT r.letter FROM tidegate.replay_letter AS r
    -- ANY, not a join: whatever plan is kept, each letter of the run is looked at once at most.
    WHERE r.replay = $1 AND r.letter = ANY ($2::uuid[]) AND r.outcome IS NULL
)
SELECT
    d.id, d.topic, d.topic_id, d.partition, d."offset", d.recorded_at, d.key, d.value, d.header_names, d.header_values,
    d.claimed_bucket, d.claimed_id, d.last_failed_at, d.has_payload, c.kind AS correction, c.value AS corrected_value
FROM undecided AS u
JOIN tidegate.dead_letter AS d ON d.id = u.letter
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
-- Not "=": by statistics from before the run hardly any letter is so, and an index of states looks cheap.
WHERE d.state IS NOT DISTINCT FROM 'replaying';

-- name: open_letters
-- Those of some letters that a run has yet to decide about: where their records stand, and how many bytes they hold. Of a
-- long value only its length is read. $1 run, $2 letters.
WITH undecided AS MATERIALIZED (
    SELECT r.letter FROM tidegate.replay_letter AS r
    -- ANY, not a join: whatever plan is kept, each letter of the run is looked at once at most.
    WHERE r.replay = $1 AND r.letter = ANY ($2::uuid[]) AND r.outcome IS NULL
)
SELECT
    d.id, d."offset", d.topic_id, d.partition,
    coalesce(octet_length(d.value), 0) + coalesce(octet_length(c.value), 0) AS bytes
FROM undecided AS u
JOIN tidegate.dead_letter AS d ON d.id = u.letter
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
-- Not "=", as in letters_of_run.
WHERE d.state IS NOT DISTINCT FROM 'replaying';

-- name: bytes_of_events
-- How many bytes some parked events hold. $1 their numbers.
SELECT p.id, coalesce(octet_length(p.value), 0) AS bytes FROM tidegate.parked AS p WHERE p.id = ANY ($1::bigint[]);

-- name: lock_letters_of_run
-- Those of some letters that a run has yet to decide about, locked. $1 run, $2 letters.
WITH undecided AS MATERIALIZED (
    SELECT r.letter FROM tidegate.replay_letter AS r
    -- ANY, not a join: whatever plan is kept, each letter of the run is looked at once at most.
    WHERE r.replay = $1 AND r.letter = ANY ($2::uuid[]) AND r.outcome IS NULL
)
SELECT d.id
FROM undecided AS u
JOIN tidegate.dead_letter AS d ON d.id = u.letter
-- Not "=", as in letters_of_run.
WHERE d.state IS NOT DISTINCT FROM 'replaying'
ORDER BY d.id
FOR UPDATE OF d;

-- name: parked_records
-- The records of parked events, and what was decided about them since, as letters that they were as well. $1 their numbers.
SELECT
    p.id, p.topic, p.topic_id, p.partition, p."offset", p.recorded_at, p.key, p.value, p.header_names, p.header_values,
    p.claimed_bucket, p.claimed_id, c.kind AS correction, c.value AS corrected_value
FROM tidegate.parked AS p
LEFT JOIN tidegate.correction AS c
    ON c.job = p.job AND c.topic = p.topic AND c.topic_id = p.topic_id AND c.partition = p.partition
        AND c."offset" = p."offset"
WHERE p.id = ANY ($1::bigint[]);

-- name: decide_letters
-- What became of some letters of a run; only what is still undecided is decided. $1 run, $2 letters, $3 outcomes,
-- $4 after how many replays a letter that fails is quarantined. Returns what has come to its end.
WITH decided AS (
    UPDATE tidegate.replay_letter AS r
    SET outcome = ($3::text[])[array_position($2::uuid[], r.letter)], decided_at = now()
    -- ANY, not a join, as in letters_of_run.
    WHERE r.replay = $1 AND r.letter = ANY ($2::uuid[]) AND r.outcome IS NULL
    RETURNING r.letter, r.outcome, r.was
),
told AS (
    UPDATE tidegate.dead_letter AS d
    SET
        replay_count = d.replay_count + CASE WHEN o.outcome IN ('resolved', 'superseded', 'failed') THEN 1 ELSE 0 END,
        state = CASE
            WHEN o.outcome IN ('resolved', 'superseded', 'already_processed', 'discarded') THEN o.outcome
            WHEN o.outcome <> 'failed' THEN o.was
            WHEN d.replay_count + 1 >= $4 THEN 'quarantined'
            ELSE 'dead'
        END,
        decided_at = CASE
            WHEN o.outcome IN ('resolved', 'superseded', 'already_processed', 'discarded') THEN now()
        END
    FROM decided AS o
    -- Not "=", as in letters_of_run.
    WHERE d.id = o.letter AND d.state IS NOT DISTINCT FROM 'replaying'
    RETURNING d.id, d.key, d.state, d.decided_at, d.last_failed_at
)
SELECT t.id, t.key, t.state, t.decided_at, t.last_failed_at FROM told AS t WHERE t.decided_at IS NOT NULL ORDER BY t.id;

-- name: decided_in_run
-- What has become of those of some letters that a run has decided about. $1 run, $2 letters.
SELECT r.letter, r.outcome
FROM tidegate.replay_letter AS r
WHERE r.replay = $1 AND r.letter = ANY ($2::uuid[]) AND r.outcome IS NOT NULL;

-- name: leave_letters
-- What a run has not decided stays as it was before it. $1 run, $2 outcome that says so.
WITH left_over AS (
    UPDATE tidegate.replay_letter AS r SET outcome = $2, decided_at = now() WHERE r.replay = $1 AND r.outcome IS NULL
    RETURNING r.letter, r.was
)
UPDATE tidegate.dead_letter AS d SET state = l.was FROM left_over AS l
-- Not "=", as in letters_of_run.
WHERE d.id = l.letter AND d.state IS NOT DISTINCT FROM 'replaying';

-- name: take_out_letters
-- Letters leave the sequences of all their keys. $1 letters.
DELETE FROM tidegate.blocking_letter AS l WHERE l.letter = ANY ($1::uuid[]);

-- name: take_out_events
-- Parked events leave their sequences. $1 job, $2 their numbers.
WITH gone AS (
    DELETE FROM tidegate.parked AS p WHERE p.id = ANY ($2::bigint[]) AND p.job = $1 RETURNING p.topic, p.order_key
)
UPDATE tidegate.blocked_key AS b
SET parked = b.parked - g.events
FROM (SELECT topic, order_key, count(*) AS events FROM gone GROUP BY topic, order_key) AS g
WHERE b.job = $1 AND b.topic = g.topic AND b.key = g.order_key;

-- name: reopen_letters
-- Letters that were taken for done, because their events waited in their own right, and have failed now. $1 letters.
UPDATE tidegate.dead_letter AS d
SET state = 'dead', decided_at = NULL
WHERE d.id = ANY ($1::uuid[]) AND d.state IN ('already_processed', 'superseded');

-- name: put_letters
-- Letters in the place of parked events that failed. $1 job, $2 letters, $3 topics, $4 keys, $5 turns, $6 offsets.
INSERT INTO tidegate.blocking_letter (letter, job, topic, key, turn, "offset")
SELECT l.letter, $1, l.topic, l.key, l.turn, l."offset"
FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::bigint[], $6::bigint[]) AS l (letter, topic, key, turn, "offset")
ON CONFLICT (letter, topic, key) DO NOTHING;

-- name: free_keys
-- Those of some locked keys of a topic of whose sequences nothing is left are free. $1 job, $2 topic, $3 keys.
DELETE FROM tidegate.blocked_key AS b
-- ANY, as in lock_blocked_keys.
WHERE b.job = $1 AND b.topic = $2 AND b.key = ANY ($3::uuid[]) AND b.parked = 0
    -- Not NOT EXISTS: as a join, planned while few keys were blocked, it reads every letter of the topic for each key.
    AND (
        SELECT l.letter
        FROM tidegate.blocking_letter AS l
        WHERE l.job = b.job AND l.topic = b.topic AND l.key = b.key
        ORDER BY l.turn, l."offset"
        LIMIT 1
    ) IS NULL
RETURNING b.key;

-- name: keys_behind_all
-- Keys with events that also waited for one of some other keys of their topic. $1 job, $2 topic, $3 those other keys.
SELECT DISTINCT p.order_key AS key
FROM tidegate.parked AS p
WHERE p.job = $1 AND p.topic = $2 AND p.waits_for = ANY ($3::uuid[]);

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

-- name: limit_silence
-- The transaction is ended should its owner fall silent. $1 milliseconds.
SELECT set_config('idle_in_transaction_session_timeout', $1::text, true);

-- name: limit_waiting
-- A statement of the transaction waits no longer for a lock. $1 milliseconds.
SELECT set_config('lock_timeout', $1::text, true);

-- name: letter_records
-- The records of some letters; value: as corrected. $1 letters.
SELECT
    d.id, d.topic, d.topic_id, d.partition, d."offset", d.recorded_at, d.key, d.value, d.header_names, d.header_values,
    d.claimed_bucket, d.claimed_id, d.last_failed_at, d.has_payload, c.kind AS correction, c.value AS corrected_value
FROM unnest($1::uuid[]) AS w (letter)
JOIN tidegate.dead_letter AS d ON d.id = w.letter
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset";

-- name: letters_by_place
-- Some letters in the order of their records' places. $1 letters.
SELECT d.id
FROM unnest($1::uuid[]) AS w (letter)
JOIN tidegate.dead_letter AS d ON d.id = w.letter
ORDER BY d.topic, d.topic_id, d.partition, d."offset";
