-- SQL of the sequences of keys. Every query is PREPAREd by a test.

-- name: keys_of_letters
-- The keys that some letters block. $1 letters.
SELECT l.letter, l.topic, l.key
FROM tidegate.blocking_letter AS l
WHERE l.letter = ANY ($1::uuid[])
ORDER BY l.topic, l.key;

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
    d.claimed_bucket, d.claimed_id, coalesce(d.claimed_on, (d.last_failed_at AT TIME ZONE 'UTC')::date) AS claimed_on,
    d.has_payload, c.kind AS correction, c.value AS corrected_value
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
SELECT p.id, coalesce(octet_length(p.value), 0) AS bytes
FROM tidegate.parked AS p
WHERE p.id = ANY ($1::bigint[]);

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

-- name: take_out_letters
-- Letters leave the sequences of all their keys. $1 letters.
DELETE FROM tidegate.blocking_letter AS l WHERE l.letter = ANY ($1::uuid[]);

-- name: take_out_events
-- Parked events leave their sequences. $1 job, $2 their numbers.
WITH gone AS (
    DELETE FROM tidegate.parked AS p
    WHERE p.id = ANY ($2::bigint[]) AND p.job = $1
    RETURNING p.topic, p.order_key
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
    d.claimed_bucket, d.claimed_id, coalesce(d.claimed_on, (d.last_failed_at AT TIME ZONE 'UTC')::date) AS claimed_on,
    d.has_payload, c.kind AS correction, c.value AS corrected_value
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
