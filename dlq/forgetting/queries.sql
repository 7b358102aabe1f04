-- SQL that lets dead letters go. Every query is PREPAREd by a test.

-- name: drop_decided
-- Removes letters that were decided long ago; how many of each job. $1 service, $2 how long they are kept, $3 how many.
SELECT g.code, g.dropped FROM tidegate.drop_decided_letters($1, $2, $3) AS g;

-- name: unresolved_letters
-- How many letters of each job of a service nobody has decided about, of records or of items, and the age of the oldest in
-- seconds; those of records are read from an index alone. $1 service, $2 their states.
SELECT
    j.code,
    count(l.first_failed_at) AS letters,
    coalesce(extract(epoch FROM now() - min(l.first_failed_at)), 0)::float8 AS oldest_seconds
FROM tidegate.job AS j
LEFT JOIN (
    SELECT d.job, d.first_failed_at FROM tidegate.dead_letter AS d WHERE d.state = ANY ($2::text[])
    UNION ALL
    SELECT i.job, coalesce(i.first_failed_at, i.decided_at)
    FROM tidegate.job_item AS i
    WHERE i.letter IS NOT NULL
        AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) = ANY ($2::text[])
) AS l ON l.job = j.id
WHERE j.service = $1
GROUP BY j.code;

-- name: drop_item_letters
-- Items whose letters were decided long ago are no letters any more: what is left is that they were done, or will not be.
-- How many of each job. $1 service, $2 how long letters are kept, $3 how many.
WITH due AS (
    SELECT d.job, d.tenant, d.brand, d.key
    FROM tidegate.job AS j
    CROSS JOIN LATERAL (
        SELECT i.job, i.tenant, i.brand, i.key
        FROM tidegate.job_item AS i
        WHERE i.letter IS NOT NULL AND i.job = j.id
            AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) IN ('resolved', 'discarded')
            AND i.decided_at < now() - $2::interval
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS d
    WHERE j.service = $1
    LIMIT $3
),
gone AS (
    UPDATE tidegate.job_item AS i
    SET letter = NULL, correlation_id = NULL, reason = NULL, handler = NULL, error_class = NULL, error_message = NULL,
        stack = NULL, fingerprint = NULL, attempts = NULL, occurrences = NULL, first_failed_at = NULL,
        last_failed_at = NULL
    FROM due AS d
    WHERE i.job = d.job AND i.tenant = d.tenant AND i.brand = d.brand AND i.key = d.key
    RETURNING i.job
)
SELECT j.code, count(*) AS dropped FROM gone AS g JOIN tidegate.job AS j ON j.id = g.job GROUP BY j.code;

-- name: items_of_key
-- Items of a job that failed or were letters, which are done once by a key or stand at it in their query. $1 job, $2 key.
SELECT i.tenant, i.brand, i.key
FROM tidegate.job_item AS i
WHERE i.job = $1 AND (i.letter IS NOT NULL OR i.outcome <> 'done') AND i.erased_at IS NULL
    AND (i.key = $2 OR i.place = $2)
ORDER BY i.tenant, i.brand, i.key;

-- name: items_of_letter
-- The item of a job that a letter is of. $1 job, $2 letter.
SELECT i.tenant, i.brand, i.key
FROM tidegate.job_item AS i
WHERE i.letter = $2 AND i.job = $1 AND i.erased_at IS NULL;

-- name: letter_of_id
-- The letter of a record, if the job has it and there is anything in it. $1 job, $2 letter.
SELECT d.id FROM tidegate.dead_letter AS d WHERE d.id = $2 AND d.job = $1 AND d.erased_at IS NULL;

-- name: letters_of_items
-- Which letters some items are. $1 job, $2 tenants, $3 brands, $4 keys.
SELECT i.letter
FROM unnest($2::text[], $3::text[], $4::text[]) AS w (tenant, brand, key)
JOIN tidegate.job_item AS i ON i.job = $1 AND i.tenant = w.tenant AND i.brand = w.brand AND i.key = w.key
WHERE i.letter IS NOT NULL;

-- name: lock_items_to_erase
-- Those of some items whose content is still there, locked: who does one of them is waited for. $1 … $4 as for
-- letters_of_items.
SELECT i.tenant, i.brand, i.key, i.outcome
FROM unnest($2::text[], $3::text[], $4::text[]) AS w (tenant, brand, key)
JOIN tidegate.job_item AS i ON i.job = $1 AND i.tenant = w.tenant AND i.brand = w.brand AND i.key = w.key
WHERE i.erased_at IS NULL
ORDER BY i.tenant, i.brand, i.key
FOR UPDATE OF i;

-- name: drop_erased_items
-- What was left of the same items when they were erased before. $1 … $4 as for letters_of_items.
DELETE FROM tidegate.job_item AS i
USING unnest($2::text[], $3::text[], $4::text[]) AS w (tenant, brand, key)
WHERE i.job = $1 AND i.tenant = w.tenant AND i.brand = w.brand
    AND i.key = 'erased ' || encode(sha256(convert_to(w.key, 'UTF8')), 'hex');

-- name: forget_page_places
-- Other items remember the same items as those behind which their pages were asked for: a replay begins at the first page
-- instead. $1 … $4 as for letters_of_items.
UPDATE tidegate.job_item AS o
SET page_after = NULL
FROM unnest($2::text[], $3::text[], $4::text[]) AS w (tenant, brand, key)
JOIN tidegate.job_item AS i ON i.job = $1 AND i.tenant = w.tenant AND i.brand = w.brand AND i.key = w.key
WHERE o.job = $1 AND o.tenant = w.tenant AND o.brand = w.brand AND o.page_after = i.place
    AND (o.letter IS NOT NULL OR o.outcome <> 'done');

-- name: erase_items
-- Nothing that may be somebody's is left of the items; of the key there is a digest, by which no run does them again.
-- Whichever nobody had done is discarded. Returns how those have ended that were letters. $1 … $4 as for letters_of_items,
-- $5 who.
UPDATE tidegate.job_item AS i
SET
    key = 'erased ' || encode(sha256(convert_to(i.key, 'UTF8')), 'hex'),
    place = NULL,
    page_after = NULL,
    correlation_id = NULL,
    error_message = 'erased',
    stack = '',
    fingerprint = 'erased',
    replay = NULL,
    erased_at = now(),
    erased_by = $5,
    decided_at = CASE
        WHEN i.outcome IN ('done', 'discarded') THEN i.decided_at
        ELSE greatest(now(), coalesce(i.last_failed_at, i.decided_at) + interval '1 microsecond')
    END,
    outcome = CASE WHEN i.outcome = 'done' THEN 'done' ELSE 'discarded' END
FROM unnest($2::text[], $3::text[], $4::text[]) AS w (tenant, brand, key)
WHERE i.job = $1 AND i.tenant = w.tenant AND i.brand = w.brand AND i.key = w.key
RETURNING
    i.letter, i.outcome, i.decided_at, coalesce(i.last_failed_at, i.first_failed_at, i.decided_at) AS last_failed_at;

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
