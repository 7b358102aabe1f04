-- SQL of the status. Every query is PREPAREd by a test.

-- name: dead_letters_by_state
-- Dead letters per job and state. $1 service. Generations of a job count together.
SELECT j.code, d.state, count(*) AS letters
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1
GROUP BY j.code, d.state
ORDER BY j.code, d.state

-- name: newest_generations
-- A service's jobs as their readers see them now. $1 service.
SELECT DISTINCT ON (j.code) j.code, j.id, j.claims_since
FROM tidegate.job AS j
WHERE j.service = $1
ORDER BY j.code, j.generation DESC

-- name: claims_of_event
-- An id in every bucket of a job: the buckets are walked from one to the next, so each costs an index probe and the size
-- of the inbox does not matter. $1 job, $2 ids.
WITH RECURSIVE buckets AS (
    (SELECT i.bucket FROM tidegate.inbox AS i WHERE i.job = $1 ORDER BY i.bucket LIMIT 1)
    UNION ALL
    SELECT (
        SELECT i.bucket FROM tidegate.inbox AS i
        WHERE i.job = $1 AND i.bucket > b.bucket
        ORDER BY i.bucket LIMIT 1
    )
    FROM buckets AS b
    WHERE b.bucket IS NOT NULL
)
SELECT i.id, i.bucket, i.claimed_on
FROM buckets AS b
JOIN tidegate.inbox AS i ON i.job = $1 AND i.bucket = b.bucket AND i.id = ANY($2::uuid[])
ORDER BY i.claimed_on, i.bucket

-- name: letters_of_event
-- The newest dead letters of an event id. $1 job, $2 event id, $3 tenant, $4 brand (NULL: any).
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.event_id = $2 AND ($3::text IS NULL OR d.tenant = $3) AND ($4::text IS NULL OR d.brand = $4)
ORDER BY d.last_failed_at DESC
LIMIT 50

-- name: letters_of_key
-- The newest dead letters of a record key. $1 job, $2 key, $3 topic (NULL: any).
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.key = $2 AND ($3::text IS NULL OR d.topic = $3)
ORDER BY d.last_failed_at DESC
LIMIT 50

-- name: letters_at_place
-- The dead letter of a record. $1 job, $2 topic, $3 topic id, $4 partition, $5 offset.
SELECT
    d.id, d.topic, d.partition, d."offset", d.event_id, d.tenant, d.brand, d.reason, d.error_class, d.attempts,
    d.occurrences, d.state, d.first_failed_at, d.last_failed_at
FROM tidegate.dead_letter AS d
WHERE d.job = $1 AND d.topic = $2 AND d.topic_id = $3 AND d.partition = $4 AND d."offset" = $5

-- name: parked_of_job
-- Events that wait behind dead letters of their keys, by partition. $1 service, $2 job code. All generations.
SELECT p.topic, p.partition, count(*) AS events
FROM tidegate.parked AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE j.service = $1 AND j.code = $2
GROUP BY p.topic, p.partition;

-- name: parked_of_event
-- Where an event waits, and the first letter before it. $1 job, $2 event id, $3 tenant, $4 brand (NULL: any).
SELECT p.topic, p.partition, p."offset", p.event_id, p.parked_at, b.letter
FROM tidegate.parked AS p
LEFT JOIN LATERAL (
    SELECT l.letter FROM tidegate.blocking_letter AS l
    WHERE l.job = p.job AND l.topic = p.topic AND l.key IN (p.order_key, p.waits_for)
    ORDER BY l.key <> p.order_key, l.turn, l."offset"
    LIMIT 1
) AS b ON true
WHERE p.job = $1 AND substr(p.event_id, 1, 200) = substr($2, 1, 200) AND p.event_id = $2
    AND ($3::text IS NULL OR p.tenant = $3) AND ($4::text IS NULL OR p.brand = $4)
ORDER BY p.id
LIMIT 50;

-- name: parked_of_key
-- What of a record key waits, first in its sequence first; the bound of a job bounds what is read. $1 job, $2 key,
-- $3 topic (NULL: any).
SELECT p.topic, p.partition, p."offset", p.event_id, p.parked_at, b.letter
FROM tidegate.parked AS p
LEFT JOIN LATERAL (
    SELECT l.letter FROM tidegate.blocking_letter AS l
    WHERE l.job = p.job AND l.topic = p.topic AND l.key IN (p.order_key, p.waits_for)
    ORDER BY l.key <> p.order_key, l.turn, l."offset"
    LIMIT 1
) AS b ON true
WHERE p.job = $1 AND p.key = $2 AND ($3::text IS NULL OR p.topic = $3)
ORDER BY p.topic, p.turn, p."offset"
LIMIT 50;

-- name: parked_at_place
-- The event of a record, if it waits. $1 job, $2 topic, $3 topic id, $4 partition, $5 offset.
SELECT p.topic, p.partition, p."offset", p.event_id, p.parked_at, b.letter
FROM tidegate.parked AS p
LEFT JOIN LATERAL (
    SELECT l.letter FROM tidegate.blocking_letter AS l
    WHERE l.job = p.job AND l.topic = p.topic AND l.key IN (p.order_key, p.waits_for)
    ORDER BY l.key <> p.order_key, l.turn, l."offset"
    LIMIT 1
) AS b ON true
WHERE p.job = $1 AND p.topic = $2 AND p.topic_id = $3 AND p.partition = $4 AND p."offset" = $5;

-- name: skipped_range_at
-- The newest decision to pass an offset unread. $1 job, $2 topic, $3 topic id, $4 partition, $5 offset.
SELECT s.first_offset, s.last_offset, s.cause, s.actor, s.reason, s.skipped_at
FROM tidegate.skipped_range AS s
WHERE s.job = $1 AND s.topic = $2 AND s.topic_id = $3 AND s.partition = $4
    AND s.first_offset <= $5 AND s.last_offset >= $5
ORDER BY s.skipped_at DESC
LIMIT 1

-- name: outbox_with_header
-- What waits in the outbox with one of some values in a header. The outbox is a queue, short unless Kafka is away.
-- $1 header, $2 values.
SELECT o.id, o.kind, o.topic, o.created_at, o.failed_at IS NOT NULL AS is_set_aside, h.value
FROM tidegate.outbox AS o
CROSS JOIN LATERAL unnest(o.header_names, o.header_values) AS h (name, value)
WHERE o.header_values && $2::bytea[] AND h.name = $1 AND h.value = ANY($2::bytea[])
ORDER BY o.id
LIMIT 50

-- name: presence_of_job
-- What the owners of a job's partitions last said. $1 service, $2 job code. The newest generation, as readers see it.
SELECT
    p.topic, p.partition, p.owner, p.state, p.detail,
    extract(epoch FROM now() - p.since)::float8 AS since_seconds,
    extract(epoch FROM now() - p.seen_at)::float8 AS seen_seconds
FROM tidegate.presence AS p
WHERE p.job = (
    SELECT j.id FROM tidegate.job AS j WHERE j.service = $1 AND j.code = $2 ORDER BY j.generation DESC LIMIT 1
)
ORDER BY p.topic, p.partition

-- name: note_emptied
-- The job's store is about to be emptied: nothing of it is visible any more. $1 job, $2 whether a backfill fills it again.
WITH emptied AS (
    UPDATE tidegate.job
    SET emptied_at = now()
    WHERE id = $1 AND $2
)
UPDATE tidegate.visible AS v
SET next_offset = 0, seen_at = now(), rewound_from = greatest(v.rewound_from, v.next_offset), rewound_at = now()
WHERE v.job = $1;

-- name: lock_job
-- The number of a job, locked: what is decided about it by hand is decided one after the other. $1 service, $2 code.
SELECT j.id
FROM tidegate.job AS j
WHERE j.service = $1 AND j.code = $2
ORDER BY j.generation DESC
LIMIT 1
FOR NO KEY UPDATE

-- name: lock_positions
-- Live positions, locked: a settle under way ends first, and the next finds what was made of them.
-- $1 job, $2 topics, $3 partitions.
SELECT p.topic, p.partition, p.next_offset, p.topic_id
FROM tidegate.position AS p
JOIN unnest($2::text[], $3::int[]) AS w (topic, partition) ON w.topic = p.topic AND w.partition = p.partition
WHERE p.job = $1 AND p.run = 0
ORDER BY p.topic, p.partition
FOR UPDATE OF p

-- name: move_position
-- A live position by hand. The epoch grows, so a live owner's settle fails its fence and it takes the position anew; who
-- died where it stood before is forgotten. $1 job, $2 topic, $3 partition, $4 new offset, $5 new topic id.
UPDATE tidegate.position
SET
    next_offset = $4, topic_id = $5, epoch = epoch + 1, owner = NULL, taken_offset = NULL, deaths = 0,
    attempt_offset = NULL, attempts = 0, moved_at = now()
WHERE job = $1 AND run = 0 AND topic = $2 AND partition = $3

-- name: keep_skipped_range
-- Offsets that are passed unread by somebody's decision. $1 job, $2 topic, $3 topic id, $4 partition, $5 first offset,
-- $6 last offset, $7 cause, $8 actor, $9 reason.
INSERT INTO tidegate.skipped_range (
    job, topic, topic_id, partition, first_offset, last_offset, cause, actor, reason
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: skipped_ranges
-- What a job passed unread, newest first. $1 service, $2 code.
SELECT
    s.topic, s.partition, s.topic_id, s.first_offset, s.last_offset, s.cause, s.actor, s.reason, s.skipped_at
FROM tidegate.skipped_range AS s
JOIN tidegate.job AS j ON j.id = s.job
WHERE j.service = $1 AND j.code = $2
ORDER BY s.skipped_at DESC, s.id DESC
LIMIT 1000

-- name: jobs_by_code
-- All generations of a service's jobs; $2 NULL: of all its jobs. $1 service, $2 codes.
SELECT j.id, j.code
FROM tidegate.job AS j
WHERE j.service = $1 AND ($2::text[] IS NULL OR j.code = ANY($2))
ORDER BY j.id

-- name: job_generations
-- All generations of a service's jobs; $2 NULL: of all its jobs. $1 service, $2 codes.
SELECT j.id, j.code, j.generation
FROM tidegate.job AS j
WHERE j.service = $1 AND ($2::text[] IS NULL OR j.code = ANY($2))
ORDER BY j.code, j.generation

-- name: letters_page
-- A page of dead letters, the newest failure first: of records, and of items of jobs by the clock. Every job and state has
-- its own walk along an index, so that no more than a page of each is read. Run it with plan_cache_mode = force_custom_plan:
-- a filter that is not set must not be there; and where the beginning of a text is all of it, it alone: the planner takes
-- two comparisons for two filters. An item has no event type; its key is by what it is done once, or its place in its query.
-- $1 jobs, $2 states, $3 reason, $4 fingerprint, $5 event type, $6 tenant, $7 brand, $8 failed since, $9 failed before,
-- $10 text of the error, $11 key, $12 and $13 last failure and id of the last letter of the page before, $14 most.
SELECT p.*
FROM unnest($1::smallint[]) AS j (job)
CROSS JOIN unnest($2::text[]) AS s (state)
CROSS JOIN LATERAL (
    (
        SELECT
            'record' AS kind, d.id, d.job, d.topic, d.partition, d."offset", d.state, d.reason, d.error_class,
            d.error_message, d.fingerprint, d.event_id, d.event_type, d.tenant, d.brand, d.handler, d.attempts,
            d.occurrences, d.replay_count, d.backfill, d.first_failed_at, d.last_failed_at, NULL::text AS item,
            NULL::bigint AS run
        FROM tidegate.dead_letter AS d
        WHERE d.job = j.job AND d.state = s.state
            AND ($3::text IS NULL OR d.reason = $3)
            AND ($4::text IS NULL OR d.fingerprint = $4)
            AND (
                $5::text IS NULL
                OR (LEFT(d.event_type, 200) = LEFT($5, 200) AND (LENGTH($5) < 200 OR d.event_type = $5))
            )
            AND ($6::text IS NULL OR (LEFT(d.tenant, 200) = LEFT($6, 200) AND (LENGTH($6) < 200 OR d.tenant = $6)))
            AND ($7::text IS NULL OR (LEFT(d.brand, 200) = LEFT($7, 200) AND (LENGTH($7) < 200 OR d.brand = $7)))
            AND ($8::timestamptz IS NULL OR d.last_failed_at >= $8)
            AND ($9::timestamptz IS NULL OR d.last_failed_at < $9)
            AND ($10::text IS NULL OR strpos(lower(d.error_class || ' ' || d.error_message), lower($10)) > 0)
            AND ($11::bytea IS NULL OR d.key = $11)
            AND ($12::timestamptz IS NULL OR (d.last_failed_at, d.id) < ($12, $13::uuid))
        ORDER BY d.last_failed_at DESC, d.id DESC
        LIMIT $14
    )
    UNION ALL
    (
        SELECT
            'item', i.letter, i.job, NULL, NULL, NULL, s.state, coalesce(i.reason, ''), coalesce(i.error_class, ''),
            coalesce(i.error_message, ''), coalesce(i.fingerprint, ''), NULL, NULL, i.tenant, i.brand,
            coalesce(i.handler, ''), coalesce(i.attempts, 1), coalesce(i.occurrences, 1), coalesce(i.replays, 0), false,
            coalesce(i.first_failed_at, i.decided_at), coalesce(i.last_failed_at, i.decided_at), i.key, i.run
        FROM tidegate.job_item AS i
        WHERE i.letter IS NOT NULL AND i.job = j.job
            AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) = s.state
            AND $5::text IS NULL
            AND ($3::text IS NULL OR i.reason = $3)
            AND ($4::text IS NULL OR i.fingerprint = $4)
            AND ($6::text IS NULL OR i.tenant = $6)
            AND ($7::text IS NULL OR i.brand = $7)
            AND ($8::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) >= $8)
            AND ($9::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) < $9)
            AND ($10::text IS NULL OR strpos(lower(i.error_class || ' ' || i.error_message), lower($10)) > 0)
            AND ($11::bytea IS NULL OR $11 IN (convert_to(i.key, 'UTF8'), convert_to(i.place, 'UTF8')))
            AND (
                $12::timestamptz IS NULL
                OR (coalesce(i.last_failed_at, i.decided_at), i.letter) < ($12, $13::uuid)
            )
        ORDER BY coalesce(i.last_failed_at, i.decided_at) DESC, i.letter DESC
        LIMIT $14
    )
) AS p
ORDER BY p.last_failed_at DESC, p.id DESC
LIMIT $14

-- name: letter_groups
-- Letters by job and fingerprint (which implies the reason), the largest group first, each with its newest letter. A job has
-- letters of one kind. $1 … $11 as for letters_page, $12 most groups.
WITH groups AS (
    SELECT
        l.job, l.fingerprint, min(l.kind) AS kind, min(l.reason) AS reason, count(*) AS letters,
        min(l.first_failed_at) AS first_failed_at, max(l.last_failed_at) AS last_failed_at
    FROM (
        SELECT 'record' AS kind, d.job, d.fingerprint, d.reason, d.first_failed_at, d.last_failed_at
        FROM tidegate.dead_letter AS d
        WHERE d.job = ANY($1::smallint[]) AND d.state = ANY($2::text[])
            AND ($3::text IS NULL OR d.reason = $3)
            AND ($4::text IS NULL OR d.fingerprint = $4)
            AND (
                $5::text IS NULL
                OR (LEFT(d.event_type, 200) = LEFT($5, 200) AND (LENGTH($5) < 200 OR d.event_type = $5))
            )
            AND ($6::text IS NULL OR (LEFT(d.tenant, 200) = LEFT($6, 200) AND (LENGTH($6) < 200 OR d.tenant = $6)))
            AND ($7::text IS NULL OR (LEFT(d.brand, 200) = LEFT($7, 200) AND (LENGTH($7) < 200 OR d.brand = $7)))
            AND ($8::timestamptz IS NULL OR d.last_failed_at >= $8)
            AND ($9::timestamptz IS NULL OR d.last_failed_at < $9)
            AND ($10::text IS NULL OR strpos(lower(d.error_class || ' ' || d.error_message), lower($10)) > 0)
            AND ($11::bytea IS NULL OR d.key = $11)
        UNION ALL
        SELECT
            'item', i.job, coalesce(i.fingerprint, ''), coalesce(i.reason, ''), coalesce(i.first_failed_at, i.decided_at),
            coalesce(i.last_failed_at, i.decided_at)
        FROM tidegate.job_item AS i
        WHERE i.letter IS NOT NULL AND i.job = ANY($1::smallint[])
            AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) = ANY($2::text[])
            AND $5::text IS NULL
            AND ($3::text IS NULL OR i.reason = $3)
            AND ($4::text IS NULL OR i.fingerprint = $4)
            AND ($6::text IS NULL OR i.tenant = $6)
            AND ($7::text IS NULL OR i.brand = $7)
            AND ($8::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) >= $8)
            AND ($9::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) < $9)
            AND ($10::text IS NULL OR strpos(lower(i.error_class || ' ' || i.error_message), lower($10)) > 0)
            AND ($11::bytea IS NULL OR $11 IN (convert_to(i.key, 'UTF8'), convert_to(i.place, 'UTF8')))
    ) AS l
    GROUP BY l.job, l.fingerprint
),
shown AS (
    SELECT g.*, count(*) OVER () AS all_groups, sum(g.letters) OVER ()::bigint AS all_letters
    FROM groups AS g
    ORDER BY g.letters DESC, g.job, g.fingerprint
    LIMIT $12
)
SELECT
    g.kind, g.job, g.reason, g.fingerprint, g.letters, g.first_failed_at, g.last_failed_at, g.all_groups, g.all_letters,
    n.id AS sample, n.error_class, n.error_message, n.handler
FROM shown AS g
CROSS JOIN LATERAL (
    SELECT p.*
    FROM unnest($2::text[]) AS s (state)
    CROSS JOIN LATERAL (
        (
            SELECT d.id, d.error_class, d.error_message, d.handler, d.last_failed_at
            FROM tidegate.dead_letter AS d
            WHERE d.job = g.job AND d.state = s.state AND d.fingerprint = g.fingerprint
                AND d.last_failed_at <= g.last_failed_at
                AND (
                    $5::text IS NULL
                    OR (LEFT(d.event_type, 200) = LEFT($5, 200) AND (LENGTH($5) < 200 OR d.event_type = $5))
                )
                AND ($6::text IS NULL OR (LEFT(d.tenant, 200) = LEFT($6, 200) AND (LENGTH($6) < 200 OR d.tenant = $6)))
                AND ($7::text IS NULL OR (LEFT(d.brand, 200) = LEFT($7, 200) AND (LENGTH($7) < 200 OR d.brand = $7)))
                AND ($10::text IS NULL OR strpos(lower(d.error_class || ' ' || d.error_message), lower($10)) > 0)
                AND ($11::bytea IS NULL OR d.key = $11)
            ORDER BY d.last_failed_at DESC, d.id DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT
                i.letter, coalesce(i.error_class, ''), coalesce(i.error_message, ''), coalesce(i.handler, ''),
                coalesce(i.last_failed_at, i.decided_at)
            FROM tidegate.job_item AS i
            WHERE i.letter IS NOT NULL AND i.job = g.job
                AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) = s.state
                AND coalesce(i.fingerprint, '') = g.fingerprint
                AND coalesce(i.last_failed_at, i.decided_at) <= g.last_failed_at
                AND ($6::text IS NULL OR i.tenant = $6)
                AND ($7::text IS NULL OR i.brand = $7)
                AND ($10::text IS NULL OR strpos(lower(i.error_class || ' ' || i.error_message), lower($10)) > 0)
                AND ($11::bytea IS NULL OR $11 IN (convert_to(i.key, 'UTF8'), convert_to(i.place, 'UTF8')))
            ORDER BY coalesce(i.last_failed_at, i.decided_at) DESC, i.letter DESC
            LIMIT 1
        )
    ) AS p
    ORDER BY p.last_failed_at DESC, p.id DESC
    LIMIT 1
) AS n
ORDER BY g.letters DESC, g.job, g.fingerprint

-- name: item_letter_details
-- All that is known of an item's letter: it holds nothing else. $1 service, $2 letter.
SELECT
    'item' AS kind, i.letter AS id, i.job, NULL::text AS topic, NULL::integer AS partition, NULL::bigint AS "offset",
    tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) AS state, coalesce(i.reason, '') AS reason,
    coalesce(i.error_class, '') AS error_class, coalesce(i.error_message, '') AS error_message,
    coalesce(i.fingerprint, '') AS fingerprint, NULL::text AS event_id, NULL::text AS event_type, i.tenant, i.brand,
    coalesce(i.handler, '') AS handler, coalesce(i.attempts, 1) AS attempts, coalesce(i.occurrences, 1) AS occurrences,
    coalesce(i.replays, 0) AS replay_count, false AS backfill, coalesce(i.first_failed_at, i.decided_at) AS first_failed_at,
    coalesce(i.last_failed_at, i.decided_at) AS last_failed_at, i.key AS item, i.run, i.scheduled_at,
    i.correlation_id::text AS correlation_id, coalesce(i.stack, '') AS stack, i.replay, i.erased_at, i.erased_by
FROM tidegate.job_item AS i
JOIN tidegate.job AS j ON j.id = i.job
WHERE i.letter = $2 AND j.service = $1

-- name: item_letters_to_decide
-- Letters of items of a job that a plan looks at, and whose they are. Run it as letters_page, whose filters these are.
-- $1 job, $2 states, $3 … $11 as for letters_page, $12 most.
SELECT i.letter AS id, tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) AS state, i.tenant, i.brand
FROM tidegate.job_item AS i
WHERE i.letter IS NOT NULL AND i.job = $1
    AND tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) = ANY($2::text[])
    AND $5::text IS NULL
    AND ($3::text IS NULL OR i.reason = $3)
    AND ($4::text IS NULL OR i.fingerprint = $4)
    AND ($6::text IS NULL OR i.tenant = $6)
    AND ($7::text IS NULL OR i.brand = $7)
    AND ($8::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) >= $8)
    AND ($9::timestamptz IS NULL OR coalesce(i.last_failed_at, i.decided_at) < $9)
    AND ($10::text IS NULL OR strpos(lower(i.error_class || ' ' || i.error_message), lower($10)) > 0)
    AND ($11::bytea IS NULL OR $11 IN (convert_to(i.key, 'UTF8'), convert_to(i.place, 'UTF8')))
ORDER BY i.letter
LIMIT $12

-- name: named_item_letters
-- Those of some letters that are of a job's items, and whose they are. $1 job, $2 letters.
SELECT i.letter AS id, tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) AS state, i.tenant, i.brand
FROM tidegate.job_item AS i
WHERE i.letter = ANY($2::uuid[]) AND i.job = $1
ORDER BY i.letter

-- name: letter_details
-- All that is known of a letter but its payload, of which sizes are told; so of what it was corrected to. $1 service, $2 letter.
SELECT
    'record' AS kind, d.id, d.job, d.topic, d.partition, d."offset", d.state, d.reason, d.error_class, d.error_message,
    d.fingerprint, d.event_id, d.event_type, d.tenant, d.brand, d.handler, d.attempts, d.occurrences, d.replay_count,
    d.backfill, d.first_failed_at, d.last_failed_at, d.topic_id, d.recorded_at, d.claimed_bucket, d.claimed_id, d.correlation_id,
    d.traceparent, d.service_version, d.stack, d.header_names, octet_length(d.key) AS key_bytes,
    octet_length(d.value) AS value_bytes, encode(sha256(d.value), 'hex') AS value_sha256, c.kind AS corrected,
    c.made_by AS corrected_by, c.made_at AS corrected_at, c.reason AS correction_reason,
    octet_length(c.value) AS corrected_bytes, encode(sha256(c.value), 'hex') AS corrected_sha256, d.erased_at,
    d.erased_by,
    (
        SELECT count(*)
        FROM tidegate.blocking_letter AS l
        JOIN tidegate.parked AS p
            ON p.job = l.job AND p.topic = l.topic AND p.order_key = l.key
                AND (p.turn, p."offset") > (l.turn, l."offset")
        WHERE l.letter = d.id
    ) AS waiting
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
WHERE d.id = $2 AND j.service = $1

-- name: letter_payload
-- The record as it came, and what it was edited to. $1 letter.
SELECT d.key, d.value, d.header_names, d.header_values, c.value AS corrected
FROM tidegate.dead_letter AS d
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
WHERE d.id = $1

-- name: letters_to_replay
-- Letters of a job that a plan looks at, by their ids. Run it as letters_page, whose filters these are.
-- $1 job, $2 states, $3 … $11 as for letters_page, $12 most.
SELECT d.id, d.state, d.last_failed_at, d.occurrences, c.made_at AS corrected_at
FROM tidegate.dead_letter AS d
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
WHERE d.job = $1 AND d.state = ANY($2::text[])
    AND ($3::text IS NULL OR d.reason = $3)
    AND ($4::text IS NULL OR d.fingerprint = $4)
    AND ($5::text IS NULL OR (LEFT(d.event_type, 200) = LEFT($5, 200) AND (LENGTH($5) < 200 OR d.event_type = $5)))
    AND ($6::text IS NULL OR (LEFT(d.tenant, 200) = LEFT($6, 200) AND (LENGTH($6) < 200 OR d.tenant = $6)))
    AND ($7::text IS NULL OR (LEFT(d.brand, 200) = LEFT($7, 200) AND (LENGTH($7) < 200 OR d.brand = $7)))
    AND ($8::timestamptz IS NULL OR d.last_failed_at >= $8)
    AND ($9::timestamptz IS NULL OR d.last_failed_at < $9)
    AND ($10::text IS NULL OR strpos(lower(d.error_class || ' ' || d.error_message), lower($10)) > 0)
    AND ($11::bytea IS NULL OR d.key = $11)
ORDER BY d.id
LIMIT $12

-- name: named_letters_to_replay
-- Those of some letters that are of a job, as letters_to_replay. $1 job, $2 letters.
SELECT d.id, d.state, d.last_failed_at, d.occurrences, c.made_at AS corrected_at
FROM unnest($2::uuid[]) AS w (id)
JOIN tidegate.dead_letter AS d ON d.id = w.id AND d.job = $1
LEFT JOIN tidegate.correction AS c
    ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
        AND c."offset" = d."offset"
ORDER BY d.id

-- name: runs_with_letters
-- Which unfinished runs have some letters, and how many each. $1 letters.
SELECT r.replay, count(*) AS letters
FROM unnest($1::uuid[]) AS w (id)
JOIN tidegate.replay_letter AS r ON r.letter = w.id AND r.outcome IS NULL
GROUP BY r.replay
ORDER BY r.replay

-- name: planned_groups
-- Some letters by fingerprint, the largest group first, each with its newest letter. $1 letters, $2 most groups.
WITH groups AS (
    SELECT
        d.fingerprint, count(*) AS letters, min(d.first_failed_at) AS first_failed_at,
        max(d.last_failed_at) AS last_failed_at, (array_agg(d.id ORDER BY d.last_failed_at DESC, d.id DESC))[1] AS sample
    FROM unnest($1::uuid[]) AS w (id)
    JOIN tidegate.dead_letter AS d ON d.id = w.id
    GROUP BY d.fingerprint
)
SELECT
    n.reason, g.fingerprint, g.letters, g.first_failed_at, g.last_failed_at, g.sample, n.error_class, n.error_message,
    n.handler, count(*) OVER () AS all_groups
FROM groups AS g
JOIN tidegate.dead_letter AS n ON n.id = g.sample
ORDER BY g.letters DESC, g.fingerprint
LIMIT $2

-- name: planned_facts
-- What a plan tells of some letters: how many are so, and one of each kind as a sample (as text, '' if none is so).
-- $1 letters, $2 most replays, $3 topics that the job reads.
WITH facts AS (
    SELECT
        d.id::text AS id, d.topic, d.key, d.first_failed_at, d.last_failed_at,
        NOT d.has_payload AND c.kind IS NULL AS is_absent,
        c.kind IS NOT DISTINCT FROM 'edit' AS is_edited,
        c.kind IS NOT DISTINCT FROM 'discard' AS is_passed_by,
        d.replay_count > 0 AS is_replayed,
        d.replay_count + 1 >= $2::integer AS is_last_try,
        d.claimed_id IS NULL AS is_unclaimed,
        d.topic <> ALL($3::text[]) AS is_unread
    FROM unnest($1::uuid[]) AS w (id)
    JOIN tidegate.dead_letter AS d ON d.id = w.id
    LEFT JOIN tidegate.correction AS c
        ON c.job = d.job AND c.topic = d.topic AND c.topic_id = d.topic_id AND c.partition = d.partition
            AND c."offset" = d."offset"
)
SELECT
    min(f.first_failed_at) AS first_failed_at,
    max(f.last_failed_at) AS last_failed_at,
    count(f.key) AS keyed,
    count(DISTINCT (f.topic, f.key)) FILTER (WHERE f.key IS NOT NULL) AS keys,
    count(*) FILTER (WHERE f.is_absent) AS absent,
    min(f.id) FILTER (WHERE f.is_absent) AS absent_sample,
    count(*) FILTER (WHERE f.is_edited) AS edited,
    min(f.id) FILTER (WHERE f.is_edited) AS edited_sample,
    count(*) FILTER (WHERE f.is_passed_by) AS passed_by,
    min(f.id) FILTER (WHERE f.is_passed_by) AS passed_by_sample,
    count(*) FILTER (WHERE f.is_replayed) AS replayed,
    min(f.id) FILTER (WHERE f.is_replayed) AS replayed_sample,
    count(*) FILTER (WHERE f.is_last_try) AS last_try,
    min(f.id) FILTER (WHERE f.is_last_try) AS last_try_sample,
    count(*) FILTER (WHERE f.is_unclaimed) AS unclaimed,
    min(f.id) FILTER (WHERE f.is_unclaimed) AS unclaimed_sample,
    count(*) FILTER (WHERE f.is_unread) AS unread,
    min(f.id) FILTER (WHERE f.is_unread) AS unread_sample
FROM facts AS f

-- name: planned_scopes
-- Whose events some letters are. $1 letters.
SELECT DISTINCT d.tenant, d.brand
FROM unnest($1::uuid[]) AS w (id)
JOIN tidegate.dead_letter AS d ON d.id = w.id
ORDER BY d.tenant, d.brand

-- name: forgotten_claims
-- Of some letters those whose claims are older than what the job still remembers: whether the claim is gone, or somebody
-- handled the event later, which has then a claim of its own. Each claim costs an index probe. $1 letters, $2 since when
-- every claim is there.
WITH old AS (
    SELECT d.id::text AS id, i.claimed_on, (d.first_failed_at AT TIME ZONE 'UTC')::date AS failed_on
    FROM unnest($1::uuid[]) AS w (id)
    JOIN tidegate.dead_letter AS d ON d.id = w.id
    LEFT JOIN LATERAL (
        SELECT i.claimed_on
        FROM tidegate.inbox AS i
        WHERE i.job = d.job AND i.bucket = d.claimed_bucket AND i.id = d.claimed_id
        LIMIT 1
    ) AS i ON true
    WHERE d.claimed_id IS NOT NULL AND d.first_failed_at < $2::timestamptz
)
SELECT
    count(*) FILTER (WHERE o.claimed_on IS NULL) AS forgotten,
    min(o.id) FILTER (WHERE o.claimed_on IS NULL) AS forgotten_sample,
    -- As claims_of_others: a day for clocks that differ.
    count(*) FILTER (WHERE o.claimed_on > o.failed_on + 1) AS handled_since,
    min(o.id) FILTER (WHERE o.claimed_on > o.failed_on + 1) AS handled_since_sample
FROM old AS o

-- name: planned_sequences
-- What else stands in the sequences of some letters. free: parked events that will be handled with them; held: those that
-- stay behind a letter that is not among them. behind: how many of the letters stand behind such a one; earlier: those
-- ones, of which need_force are quarantined. Lists hold the first few. Laterals with OFFSET 0 walk an index for each key,
-- whatever the planner believes about how many there are. $1 job, $2 letters, $3 how few.
WITH mine AS MATERIALIZED (
    SELECT l.topic, l.key
    FROM unnest($2::uuid[]) AS w (id)
    CROSS JOIN LATERAL (
        -- They are the job's. To ask for it, too, would tempt the planner to read an index of all that the job has.
        SELECT l.topic, l.key FROM tidegate.blocking_letter AS l WHERE l.letter = w.id OFFSET 0
    ) AS l
    GROUP BY l.topic, l.key
),
keys AS MATERIALIZED (
    SELECT m.topic, m.key FROM mine AS m
    UNION
    SELECT p.topic, p.order_key
    FROM mine AS m
    CROSS JOIN LATERAL (
        SELECT p.topic, p.order_key
        FROM tidegate.parked AS p
        WHERE p.job = $1 AND p.topic = m.topic AND p.waits_for = m.key
        OFFSET 0
    ) AS p
),
entries AS (
    SELECT
        l.topic, l.key, l.turn, l."offset", l.letter, l.letter = ANY($2::uuid[]) AS is_mine, NULL::integer AS partition,
        NULL AS event_id, NULL AS tenant, NULL AS brand, NOT l.letter = ANY($2::uuid[]) AS is_stop
    FROM keys AS k
    CROSS JOIN LATERAL (
        SELECT l.topic, l.key, l.turn, l."offset", l.letter
        FROM tidegate.blocking_letter AS l
        WHERE l.job = $1 AND l.topic = k.topic AND l.key = k.key
        OFFSET 0
    ) AS l
    UNION ALL
    SELECT
        p.topic, p.order_key, p.turn, p."offset", NULL, false, p.partition, p.event_id, p.tenant, p.brand,
        -- What it also waits for keeps it, and those behind it, unless that is of letters that are all among them.
        CASE WHEN p.waits_for IS NULL THEN false ELSE EXISTS (
            SELECT FROM tidegate.blocking_letter AS l
            WHERE l.job = $1 AND l.topic = p.topic AND l.key = p.waits_for AND NOT l.letter = ANY($2::uuid[])
        ) END
    FROM keys AS k
    CROSS JOIN LATERAL (
        SELECT p.topic, p.order_key, p.turn, p."offset", p.partition, p.event_id, p.tenant, p.brand, p.waits_for
        FROM tidegate.parked AS p
        WHERE p.job = $1 AND p.topic = k.topic AND p.order_key = k.key
        OFFSET 0
    ) AS p
),
placed AS MATERIALIZED (
    SELECT
        e.topic, e.key, e.turn, e."offset", e.letter, e.is_mine, e.partition, e.event_id, e.tenant, e.brand,
        bool_or(e.is_stop) OVER (PARTITION BY e.topic, e.key ORDER BY e.turn, e."offset") AS is_held,
        bool_or(e.is_mine) OVER (PARTITION BY e.topic, e.key ORDER BY e.turn DESC, e."offset" DESC) AS is_before_mine
    FROM entries AS e
),
free AS MATERIALIZED (
    SELECT f.topic, f.partition, f."offset", f.event_id
    FROM placed AS f
    WHERE f.letter IS NULL AND NOT f.is_held
    ORDER BY f.topic, f.key, f.turn, f."offset"
    LIMIT $3
),
earlier AS MATERIALIZED (
    SELECT DISTINCT e.letter FROM placed AS e WHERE e.letter IS NOT NULL AND NOT e.is_mine AND e.is_before_mine
)
SELECT
    (SELECT count(*) FROM placed AS f WHERE f.letter IS NULL AND NOT f.is_held) AS free,
    (SELECT count(*) FROM placed AS f WHERE f.letter IS NULL AND f.is_held) AS held,
    ARRAY(SELECT f.topic FROM free AS f) AS free_topics,
    ARRAY(SELECT f.partition FROM free AS f) AS free_partitions,
    ARRAY(SELECT f."offset" FROM free AS f) AS free_offsets,
    ARRAY(SELECT f.event_id FROM free AS f) AS free_ids,
    (SELECT count(DISTINCT f.letter) FROM placed AS f WHERE f.is_mine AND f.is_held) AS behind,
    (SELECT count(*) FROM earlier) AS earlier,
    ARRAY(SELECT e.letter FROM earlier AS e ORDER BY e.letter LIMIT $3) AS earlier_first,
    (
        SELECT count(*)
        FROM earlier AS e
        CROSS JOIN LATERAL (SELECT d.state FROM tidegate.dead_letter AS d WHERE d.id = e.letter OFFSET 0) AS d
        WHERE d.state = 'quarantined'
    ) AS need_force,
    ARRAY(
        SELECT DISTINCT ARRAY[f.tenant, f.brand] FROM placed AS f WHERE f.letter IS NULL AND NOT f.is_held ORDER BY 1
    ) AS scopes

-- name: sights
-- What has become of some places in some jobs, for whoever waits until readers see them: a row each, numbered as they were
-- asked for. Each is a handful of index probes. What counts another topic's offsets is not there. $1 service, $2 job codes,
-- $3 topics, $4 partitions, $5 offsets.
SELECT
    w.number, j.id IS NOT NULL AS has_started, p.topic_id, p.next_offset AS position, v.next_offset AS visible, v.trouble,
    d.id AS letter, d.state AS letter_state, d.reason AS letter_reason, k.is_parked, k.behind, s.is_skipped
FROM unnest($2::text[], $3::text[], $4::int[], $5::bigint[])
    WITH ORDINALITY AS w (code, topic, partition, "offset", number)
LEFT JOIN LATERAL (
    SELECT g.id FROM tidegate.job AS g WHERE g.service = $1 AND g.code = w.code ORDER BY g.generation DESC LIMIT 1
) AS j ON true
LEFT JOIN tidegate.position AS p ON p.job = j.id AND p.run = 0 AND p.topic = w.topic AND p.partition = w.partition
LEFT JOIN tidegate.visible AS v
    ON v.job = j.id AND v.topic = w.topic AND v.partition = w.partition AND v.topic_id = p.topic_id
LEFT JOIN LATERAL (
    SELECT l.id, l.state, l.reason
    FROM tidegate.dead_letter AS l
    WHERE l.job = j.id AND l.topic = w.topic AND l.topic_id = p.topic_id AND l.partition = w.partition
        AND l."offset" = w."offset"
    LIMIT 1
) AS d ON true
LEFT JOIN LATERAL (
    SELECT
        true AS is_parked,
        (
            SELECT b.letter FROM tidegate.blocking_letter AS b
            WHERE b.job = e.job AND b.topic = e.topic AND b.key IN (e.order_key, e.waits_for)
            ORDER BY b.key <> e.order_key, b.turn, b."offset"
            LIMIT 1
        ) AS behind
    FROM tidegate.parked AS e
    WHERE e.job = j.id AND e.topic = w.topic AND e.topic_id = p.topic_id AND e.partition = w.partition
        AND e."offset" = w."offset"
    LIMIT 1
) AS k ON true
LEFT JOIN LATERAL (
    SELECT true AS is_skipped
    FROM tidegate.skipped_range AS r
    WHERE r.job = j.id AND r.topic = w.topic AND r.topic_id = p.topic_id AND r.partition = w.partition
        AND w."offset" BETWEEN r.first_offset AND r.last_offset
    LIMIT 1
) AS s ON true
ORDER BY w.number;

-- name: views_of_job
-- What readers of a job see, as it counts the offsets of the topic that the position counts. One whose position was moved
-- back this moment is not told as visible any more. $1 service, $2 job code.
SELECT
    p.topic, p.partition,
    CASE WHEN v.next_offset > p.next_offset THEN p.next_offset ELSE v.next_offset END AS visible,
    CASE WHEN v.next_offset > p.next_offset THEN greatest(v.next_offset, v.rewound_from) ELSE v.rewound_from END
        AS rewound_from,
    v.trouble,
    greatest(extract(epoch FROM now() - v.trouble_since), 0)::float8 AS trouble_seconds,
    greatest(extract(epoch FROM now() - greatest(p.moved_at, v.seen_at)), 0)::float8 AS still_seconds
FROM tidegate.position AS p
LEFT JOIN tidegate.visible AS v
    ON v.job = p.job AND v.topic = p.topic AND v.partition = p.partition AND v.topic_id = p.topic_id
WHERE p.run = 0
    AND p.job = (
        SELECT j.id FROM tidegate.job AS j WHERE j.service = $1 AND j.code = $2 ORDER BY j.generation DESC LIMIT 1
    )
ORDER BY p.topic, p.partition;

-- name: clock_status
-- How jobs by the clock stand: what waits for somebody, what is at work, how the last run ended, what failed and has not
-- been dealt with. Jobs that were never started have no row. $1 service, $2 codes.
SELECT
    j.code,
    (
        SELECT count(*) FROM tidegate.job_run AS r
        WHERE r.job = j.id AND r.state = 'due' AND r.due_at <= now()
    ) AS due,
    (SELECT count(*) FROM tidegate.job_run AS r WHERE r.job = j.id AND r.state = 'running') AS running,
    (
        SELECT count(*) FROM tidegate.job_item AS i
        WHERE i.job = j.id AND i.outcome IN ('failed', 'quarantined')
    ) AS failed_items,
    l.state AS last_state, l.finished_at AS last_ended_at,
    EXISTS (
        SELECT FROM tidegate.intent AS p
        WHERE p.job = j.id AND p.kind = 'pause' AND p.ended_at IS NULL AND (p.until IS NULL OR p.until > now())
    ) AS is_paused
FROM tidegate.job AS j
LEFT JOIN LATERAL (
    SELECT r.state, r.finished_at
    FROM tidegate.job_run AS r
    WHERE r.job = j.id AND r.finished_at IS NOT NULL
    ORDER BY r.finished_at DESC
    LIMIT 1
) AS l ON true
WHERE j.service = $1 AND j.code = ANY($2::text[]);

-- name: clock_progress
-- How far a job by the clock has come, scope by scope: its checkpoint, and its provider's cursor where it has one.
-- $1 service, $2 code, $3 how many.
WITH scopes AS (
    SELECT c.job, c.tenant, c.brand
    FROM tidegate.job_checkpoint AS c
    UNION
    SELECT p.job, p.tenant, p.brand
    FROM tidegate.provider_cursor AS p
)
SELECT
    s.tenant, s.brand, c.cursor AS checkpoint, c.first_run, c.token, coalesce(c.moved_at, p.moved_at) AS moved_at,
    p.synced_until
FROM scopes AS s
JOIN tidegate.job AS j ON j.id = s.job
LEFT JOIN tidegate.job_checkpoint AS c ON c.job = s.job AND c.tenant = s.tenant AND c.brand = s.brand
LEFT JOIN tidegate.provider_cursor AS p ON p.job = s.job AND p.tenant = s.tenant AND p.brand = s.brand
WHERE j.service = $1 AND j.code = $2
ORDER BY s.tenant, s.brand
LIMIT $3
