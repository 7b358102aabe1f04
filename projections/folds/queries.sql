-- name: lock_states
-- Locks the states of keys, in the one order that everybody locks them in; those that are missing are made, empty. A row
-- that another open transaction is making is waited for, which a SELECT would not see. $1 job, $2 keys (distinct).
INSERT INTO tidegate.fold_state AS s (job, key)
SELECT $1, k.key
FROM unnest($2::text[]) AS k (key)
ORDER BY k.key COLLATE "C"
ON CONFLICT (job, key) DO UPDATE SET revision = s.revision WHERE false;

-- name: states
-- The states of keys as of now. $1 job, $2 keys.
SELECT key, state, revision, tenant, now() AS read_at
FROM tidegate.fold_state
WHERE job = $1 AND key = ANY ($2::text[]);

-- name: write_states
-- Keeps changed states, each under its next revision, and marks their keys dirty. The rows are locked by the caller.
-- Through the unique index in any plan: no join with the table. $1 job, $2 keys, $3 states as JSON or NULL, $4 tenants.
WITH written AS (
    INSERT INTO tidegate.fold_state AS s (job, key, state, revision, tenant)
    SELECT $1, c.key, c.state::json, 1, c.tenant
    FROM unnest($2::text[], $3::text[], $4::text[]) AS c (key, state, tenant)
    ORDER BY c.key COLLATE "C"
    ON CONFLICT (job, key) DO UPDATE
    SET state = excluded.state, revision = s.revision + 1, tenant = excluded.tenant, changed_at = now()
    RETURNING key, revision
)
INSERT INTO tidegate.dirty AS d (job, key, revision)
SELECT $1, w.key, w.revision
FROM written AS w
ORDER BY w.key
ON CONFLICT (job, key) DO UPDATE
SET revision = excluded.revision,
    since = CASE WHEN d.error IS NULL THEN d.since ELSE now() END,
    taken_until = NULL,
    error = NULL,
    failed_at = NULL,
    failures = 0,
    failed_in = '{}';

-- name: take_dirty
-- Takes the keys that have waited longest, for some seconds. What another renderer takes, or a fold changes now, is
-- passed over. $1 job, $2 how many, $3 seconds.
UPDATE tidegate.dirty AS d
SET taken_until = now() + make_interval(secs => $3)
WHERE d.job = $1
    AND d.key = ANY (ARRAY(
        SELECT n.key
        FROM tidegate.dirty AS n
        WHERE n.job = $1 AND n.error IS NULL AND (n.taken_until IS NULL OR n.taken_until < now())
        ORDER BY n.since
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
RETURNING d.key;

-- name: give_back
-- Lets others take the keys at once. $1 job, $2 keys.
UPDATE tidegate.dirty AS d
SET taken_until = NULL
WHERE d.job = $1
    AND d.key = ANY (ARRAY(
        SELECT n.key
        FROM tidegate.dirty AS n
        WHERE n.job = $1 AND n.key = ANY ($2::text[]) AND n.taken_until IS NOT NULL
        ORDER BY n.key
        FOR UPDATE SKIP LOCKED
    ));

-- name: clear_dirty
-- The keys are clean if no revision is newer than the one that was rendered; returns them. One that a fold changes now is
-- passed over: it has another revision in a moment, or is rendered again. $1 job, $2 keys, $3 revisions.
DELETE FROM tidegate.dirty AS d
WHERE d.job = $1
    AND d.key = ANY (ARRAY(
        SELECT n.key
        FROM tidegate.dirty AS n
        WHERE n.job = $1
            AND n.key = ANY ($2::text[])
            AND EXISTS (
                SELECT FROM unnest($2::text[], $3::bigint[]) AS r (key, revision)
                WHERE r.key = n.key AND n.revision <= r.revision
            )
        ORDER BY n.key
        FOR UPDATE SKIP LOCKED
    ))
RETURNING d.key;

-- name: rendered_meanwhile
-- Keys that changed while they were rendered wait only since then. $1 job, $2 keys, $3 when the rendered states were read.
UPDATE tidegate.dirty AS d
SET since = $3
WHERE d.job = $1
    AND d.key = ANY (ARRAY(
        SELECT n.key
        FROM tidegate.dirty AS n
        WHERE n.job = $1 AND n.key = ANY ($2::text[]) AND n.error IS NULL AND n.since < $3
        ORDER BY n.key
        FOR UPDATE SKIP LOCKED
    ));

-- name: fail_dirty
-- The keys rest, with what was in the way of their revisions, unless they have changed meanwhile; returns those that rest.
-- $1 job, $2 keys, $3 revisions, $4 errors, $5 release.
UPDATE tidegate.dirty AS d
SET error = f.error,
    failed_at = now(),
    failures = d.failures + 1,
    failed_in = CASE WHEN $5 = ANY (d.failed_in) THEN d.failed_in ELSE d.failed_in || $5::text END,
    taken_until = NULL
FROM unnest($2::text[], $3::bigint[], $4::text[]) AS f (key, revision, error)
WHERE d.job = $1
    AND d.key = ANY (ARRAY(
        SELECT n.key
        FROM tidegate.dirty AS n
        WHERE n.job = $1 AND n.key = ANY ($2::text[])
        ORDER BY n.key
        FOR UPDATE SKIP LOCKED
    ))
    AND d.key = f.key
    AND d.revision <= f.revision
RETURNING d.key;

-- name: retry_failed
-- Keys that could not be rendered are tried again by a release that has not tried yet; returns how many.
-- $1 job, $2 release, $3 how many at most.
WITH again AS (
    UPDATE tidegate.dirty AS d
    SET error = NULL, since = now()
    WHERE d.job = $1
        AND d.key = ANY (ARRAY(
            SELECT n.key
            FROM tidegate.dirty AS n
            WHERE n.job = $1 AND n.error IS NOT NULL AND NOT ($2::text = ANY (n.failed_in))
            ORDER BY n.key
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ))
    RETURNING 1
)
SELECT count(*) FROM again;

-- name: rendering_state
-- What the sink does not show yet of a job: keys to be rendered and keys that could not be; when the first of the former
-- changed. $1 job, $2 how many of each are counted at most.
SELECT
    (
        SELECT count(*)
        FROM (SELECT FROM tidegate.dirty AS d WHERE d.job = $1 AND d.error IS NULL LIMIT $2) AS w
    ) AS waiting,
    (
        SELECT count(*)
        FROM (SELECT FROM tidegate.dirty AS d WHERE d.job = $1 AND d.error IS NOT NULL LIMIT $2) AS f
    ) AS failed,
    (SELECT min(d.since) FROM tidegate.dirty AS d WHERE d.job = $1 AND d.error IS NULL) AS waiting_since,
    now() AS read_at;

-- name: failed_keys
-- Keys that could not be rendered, those that failed last first. $1 job, $2 how many.
SELECT key, revision, error, failures, failed_at
FROM tidegate.dirty
WHERE job = $1 AND error IS NOT NULL
ORDER BY failed_at DESC
LIMIT $2;

-- name: count_states
-- How many keys of a job have something to render. $1 job.
SELECT count(*) FROM tidegate.fold_state WHERE job = $1 AND revision > 0;

-- name: mark_dirty
-- The next keys after one are to be rendered again; returns how many, and the final one of them. $1 job, $2 the key
-- before the first, $3 how many at most.
WITH next AS (
    SELECT s.key, s.revision
    FROM tidegate.fold_state AS s
    WHERE s.job = $1 AND s.key > $2 AND s.revision > 0
    ORDER BY s.key
    LIMIT $3
),
marked AS (
    INSERT INTO tidegate.dirty AS d (job, key, revision)
    SELECT $1, n.key, n.revision
    FROM next AS n
    ORDER BY n.key
    ON CONFLICT (job, key) DO UPDATE
    SET since = CASE WHEN d.error IS NULL THEN d.since ELSE now() END,
        taken_until = NULL,
        error = NULL,
        failed_at = NULL,
        failures = 0,
        failed_in = '{}'
)
SELECT count(*) AS keys, max(n.key) AS final FROM next AS n;

-- name: mark_failed_dirty
-- Keys that could not be rendered are tried again, whatever the release; returns how many. $1 job, $2 how many at most.
WITH again AS (
    UPDATE tidegate.dirty AS d
    SET error = NULL, since = now(), failed_at = NULL, failures = 0, failed_in = '{}'
    WHERE d.job = $1
        AND d.key = ANY (ARRAY(
            SELECT n.key
            FROM tidegate.dirty AS n
            WHERE n.job = $1 AND n.error IS NOT NULL
            ORDER BY n.key
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ))
    RETURNING 1
)
SELECT count(*) FROM again;

-- name: positions_at
-- Where the live consumer of a job stands, when that was read, and since when the first key waits that is not in the
-- sink. The time is taken after the snapshot: now() would be before it, and perhaps before a settle that it has. $1 job.
SELECT
    p.topic, p.partition, p.topic_id, p.next_offset,
    clock_timestamp() AS read_at,
    (SELECT min(d.since) FROM tidegate.dirty AS d WHERE d.job = $1 AND d.error IS NULL) AS waiting_since
FROM tidegate.position AS p
WHERE p.job = $1 AND p.run = 0;
