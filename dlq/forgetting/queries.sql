-- SQL that lets dead letters go. Every query is PREPAREd by a test.

-- name: drop_decided
-- Removes letters that were decided long ago; how many of each job. $1 service, $2 how long they are kept, $3 how many.
SELECT g.code, g.dropped FROM tidegate.drop_decided_letters($1, $2, $3) AS g;

-- name: unresolved_letters
-- How many letters of each job of a service nobody has decided about, and the age of the oldest in seconds; read from an
-- index alone. $1 service, $2 their states.
SELECT
    j.code,
    count(d.state) AS letters,
    coalesce(extract(epoch FROM now() - min(d.first_failed_at)), 0)::float8 AS oldest_seconds
FROM tidegate.job AS j
LEFT JOIN tidegate.dead_letter AS d ON d.job = j.id AND d.state = ANY ($2::text[])
WHERE j.service = $1
GROUP BY j.code;

-- name: letters_of_key
-- Letters with a record key. $1 job, $2 key.
SELECT d.id
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.key = $2
ORDER BY d.id;

-- name: parked_of_key
-- Parked events with a record key. $1 job, $2 key.
SELECT p.id
FROM tidegate.parked AS p
WHERE p.job = $1 AND p.key = $2
ORDER BY p.id;

-- name: letters_to_read
-- The next letters with what is in them, and what somebody edited them to say. $1 job, $2 the last one read, $3 how many.
SELECT
    d.id, d.topic, d.partition, d."offset", d.recorded_at, d.key, d.value, d.header_names, d.header_values, d.has_payload,
    c.value AS edited
FROM tidegate.dead_letter AS d
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
WHERE d.job = $1 AND d.id > $2 AND d.erased_at IS NULL
ORDER BY d.id
LIMIT $3;

-- name: parked_to_read
-- The next parked events with what is in them. $1 job, $2 the last one read, $3 how many.
SELECT
    p.id, p.topic, p.partition, p."offset", p.recorded_at, p.key, p.value, p.header_names, p.header_values
FROM tidegate.parked AS p
WHERE p.job = $1 AND p.id > $2
ORDER BY p.id
LIMIT $3;

-- name: letters_by_state
-- What some letters come to, state by state: how many, how many of them somebody edited. $1 letters.
SELECT d.state, count(*) AS letters, count(c.kind) AS edits
FROM tidegate.dead_letter AS d
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset" AND c.kind = 'edit'
WHERE d.id = ANY ($1::uuid[])
GROUP BY d.state
ORDER BY d.state;

-- name: parked_in_keys_of
-- How many events are parked in the sequences of keys that some letters block. $1 letters.
SELECT coalesce(sum(b.parked), 0)::bigint
FROM tidegate.blocked_key AS b
WHERE (b.job, b.topic, b.key) IN (
    SELECT l.job, l.topic, l.key FROM tidegate.blocking_letter AS l WHERE l.letter = ANY ($1::uuid[])
);

-- name: copies_in_outbox
-- How many records wait in the outbox that tell about some letters. $1 DLQ topic, $2 ids of the letters as bytes of text.
SELECT count(*)
FROM tidegate.outbox AS o
WHERE o.kind = 'dead_letter' AND o.topic = $1 AND o.header_values && $2::bytea[];

-- name: events_in_outbox
-- How many events that handlers publish wait in the outbox with a key. $1 key.
SELECT count(*) FROM tidegate.outbox AS o WHERE o.kind = 'event' AND o.key = $1;

-- name: sequences_of
-- The keys in whose sequences some letters and parked events stand. $1 job, $2 letters, $3 events.
SELECT l.topic, l.key FROM tidegate.blocking_letter AS l WHERE l.letter = ANY ($2::uuid[])
UNION
SELECT p.topic, p.order_key FROM tidegate.parked AS p WHERE p.job = $1 AND p.id = ANY ($3::bigint[]);

-- name: lock_letters_to_erase
-- Those of some letters whose content is still there, locked. $1 letters.
SELECT d.id, d.state
FROM tidegate.dead_letter AS d
WHERE d.id = ANY ($1::uuid[]) AND d.erased_at IS NULL
ORDER BY d.id
FOR UPDATE;

-- name: lock_parked_to_erase
-- Those of some parked events that still wait, locked. $1 job, $2 events.
SELECT p.id, p.topic, p.topic_id, p.partition, p."offset"
FROM tidegate.parked AS p
WHERE p.job = $1 AND p.id = ANY ($2::bigint[])
ORDER BY p.id
FOR UPDATE;

-- name: pass_letters_by
-- Later reads of the job pass the letters' records by, and of an edit nothing is left; how many edits there were.
-- $1 letters, $2 reason, $3 who.
WITH edits AS (
    SELECT count(*) AS edits
    FROM tidegate.correction AS c
    JOIN tidegate.dead_letter AS d
        ON d.job = c.job AND d.topic = c.topic AND d.topic_id = c.topic_id AND d.partition = c.partition
            AND d."offset" = c."offset"
    WHERE d.id = ANY ($1::uuid[]) AND c.kind = 'edit'
),
kept AS (
    INSERT INTO tidegate.correction AS c (job, topic, topic_id, partition, "offset", kind, letter, reason, made_by)
    SELECT d.job, d.topic, d.topic_id, d.partition, d."offset", 'discard', d.id, $2, $3
    FROM tidegate.dead_letter AS d
    WHERE d.id = ANY ($1::uuid[])
    ORDER BY d.id
    ON CONFLICT (job, topic, topic_id, partition, "offset") DO UPDATE SET
        kind = 'discard',
        value = NULL,
        reason = excluded.reason,
        made_by = excluded.made_by,
        made_at = now()
)
SELECT e.edits FROM edits AS e;

-- name: pass_parked_by
-- Later reads of the job pass the records of parked events by. $1 job, $2 events, $3 the letters they would have become,
-- $4 reason, $5 who.
INSERT INTO tidegate.correction AS c (job, topic, topic_id, partition, "offset", kind, letter, reason, made_by)
SELECT p.job, p.topic, p.topic_id, p.partition, p."offset", 'discard', e.letter, $4, $5
FROM unnest($2::bigint[], $3::uuid[]) AS e (id, letter)
JOIN tidegate.parked AS p ON p.id = e.id AND p.job = $1
ORDER BY p.id
ON CONFLICT (job, topic, topic_id, partition, "offset") DO UPDATE SET
    kind = 'discard',
    value = NULL,
    reason = excluded.reason,
    made_by = excluded.made_by,
    made_at = now();

-- name: erase_letters
-- Nothing that may be somebody's is left in the letters; whichever nobody had decided about is discarded. Returns how they
-- have ended. $1 letters, $2 who, $3 states in which somebody had yet to decide. Times of a letter only grow, also where
-- the clocks of two hosts disagree.
UPDATE tidegate.dead_letter AS d
SET key = NULL,
    value = NULL,
    has_payload = false,
    header_names = '{}',
    header_values = '{}',
    event_id = NULL,
    correlation_id = NULL,
    traceparent = NULL,
    error_message = 'erased',
    stack = '',
    fingerprint = 'erased',
    erased_at = now(),
    erased_by = $2,
    state = CASE WHEN d.state = ANY ($3::text[]) THEN 'discarded' ELSE d.state END,
    decided_at = CASE
        WHEN d.state = ANY ($3::text[]) THEN greatest(now(), d.last_failed_at + interval '1 microsecond')
        ELSE coalesce(d.decided_at, now())
    END
WHERE d.id = ANY ($1::uuid[])
RETURNING d.id, d.state, d.decided_at, d.last_failed_at;

-- name: drop_copies
-- Records that wait in the outbox and tell about some letters are gone. $1 DLQ topic, $2 ids of the letters as bytes.
DELETE FROM tidegate.outbox AS o
WHERE o.kind = 'dead_letter' AND o.topic = $1 AND o.header_values && $2::bytea[]
RETURNING o.id;
