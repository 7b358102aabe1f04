-- SQL of providers. Every query is PREPAREd by a test.

-- name: know_provider
-- A provider that nobody has called yet may be called. $1 service, $2 its name.
INSERT INTO tidegate.provider AS p (service, name)
VALUES ($1, $2)
ON CONFLICT (service, name) DO NOTHING

-- name: admit_call
-- Whether somebody may call a provider, after which seconds, and whether that is the one call that tries (half-open). Whoever
-- is admitted has a place of his own in the row of calls. $1 service, $2 name, $3 seconds between calls, $4 seconds that
-- somebody waits for his place, $5 seconds that a call that tries may take.
WITH seen AS MATERIALIZED (
    SELECT p.service, p.name, p.next_at, p.paused_until, p.trial_at, clock_timestamp() AS now
    FROM tidegate.provider AS p
    WHERE p.service = $1 AND p.name = $2
    FOR UPDATE
),
placed AS (
    SELECT
        s.service, s.name, s.now, s.trial_at IS NOT NULL AS is_open,
        greatest(s.paused_until, s.trial_at) AS alone_until, greatest(s.next_at, s.now) AS place
    FROM seen AS s
),
decided AS (
    SELECT
        d.service, d.name, d.now, d.is_open, d.place, greatest(d.place, d.alone_until) AS free_at,
        d.alone_until <= d.now AND d.place <= d.now + make_interval(secs => $4) AS is_admitted
    FROM placed AS d
),
taken AS (
    UPDATE tidegate.provider AS p
    SET next_at = d.place + make_interval(secs => $3),
        trial_at = CASE WHEN d.is_open THEN d.place + make_interval(secs => $5) END
    FROM decided AS d
    WHERE p.service = d.service AND p.name = d.name AND d.is_admitted
)
SELECT
    d.is_admitted, d.is_admitted AND d.is_open AS is_trial,
    greatest(extract(epoch FROM d.free_at - d.now), 0)::float8 AS wait_seconds
FROM decided AS d

-- name: is_left_alone
-- Whether nobody may call a provider now, because of what came up meanwhile. $1 service, $2 name.
SELECT greatest(p.paused_until, p.trial_at) > clock_timestamp()
FROM tidegate.provider AS p
WHERE p.service = $1 AND p.name = $2

-- name: is_circuit_closed
-- $1 service, $2 name.
SELECT p.trial_at IS NULL FROM tidegate.provider AS p WHERE p.service = $1 AND p.name = $2

-- name: pause_provider
-- Nobody calls a provider for a while; one that is longer already stays. $1 service, $2 name, $3 seconds.
UPDATE tidegate.provider AS p
SET paused_until = greatest(p.paused_until, clock_timestamp() + make_interval(secs => $3))
WHERE p.service = $1 AND p.name = $2

-- name: call_answered
-- A call was answered: the circuit closes if it was the one that tried. $1 service, $2 name, $3 whether it was.
UPDATE tidegate.provider AS p
SET failures = 0, trial_at = CASE WHEN $3 THEN NULL ELSE p.trial_at END, rests = CASE WHEN $3 THEN 0 ELSE p.rests END
WHERE p.service = $1 AND p.name = $2 AND (p.failures > 0 OR $3)

-- name: call_failed
-- A call failed: the circuit opens after so many in a row, and stays open if it was the one that tried; each time twice as
-- long. $1 service, $2 name, $3 whether it tried, $4 how many, $5 seconds of the first rest, $6 of the longest.
UPDATE tidegate.provider AS p
SET failures = p.failures + 1,
    rests = CASE
        WHEN $3::boolean OR (p.trial_at IS NULL AND p.failures + 1 >= $4) THEN least(p.rests + 1, 30)
        ELSE p.rests
    END,
    trial_at = CASE
        WHEN $3 OR (p.trial_at IS NULL AND p.failures + 1 >= $4)
            THEN clock_timestamp() + make_interval(secs => least($5::float8 * 2 ^ p.rests, $6::float8))
        ELSE p.trial_at
    END
WHERE p.service = $1 AND p.name = $2

-- name: read_sync
-- Where a job's next run in a scope begins, what time it is, and which items of earlier runs have not been done. $1 job,
-- $2 tenant, $3 brand.
SELECT
    n.now, coalesce(c.run, 0) AS run, c.synced_until, c.asked_since, c.etag, c.lost_since,
    EXISTS (
        SELECT FROM tidegate.job_item AS i
        WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome = 'failed' AND i.letter IS NULL
    ) AS has_failed
FROM (SELECT clock_timestamp() AS now) AS n
LEFT JOIN tidegate.provider_cursor AS c ON c.job = $1 AND c.tenant = $2 AND c.brand = $3

-- name: forget_replaced
-- In the transaction that ends a run which read from before the first failed item on: failed items that the provider did not
-- answer with any more have other versions by now. $1 job, $2 tenant, $3 brand, $4 when its question was first asked.
DELETE FROM tidegate.job_item AS i
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome = 'failed' AND i.letter IS NULL AND i.decided_at < $4

-- name: move_sync
-- In the transaction that ends a run well: the next one begins where this one did. $1 job, $2 tenant, $3 brand, $4 run,
-- $5 token, $6 when it began, $7 since when it asked (NULL: everything), $8 etag of its whole answer (NULL: none), $9 since
-- when an item that has not been done would be found, if there is one.
INSERT INTO tidegate.provider_cursor AS c (
    job, tenant, brand, run, token, synced_until, asked_since, etag, lost_since
)
SELECT
    $1, $2, $3, $4, $5, $6, $7, $8,
    CASE WHEN EXISTS (
        SELECT FROM tidegate.job_item AS i
        WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome IN ('failed', 'quarantined')
    ) THEN $9::timestamptz END
ON CONFLICT (job, tenant, brand) DO UPDATE
SET run = EXCLUDED.run, token = EXCLUDED.token, synced_until = EXCLUDED.synced_until,
    asked_since = EXCLUDED.asked_since, etag = EXCLUDED.etag, moved_at = now(),
    lost_since = CASE WHEN EXCLUDED.lost_since IS NOT NULL THEN coalesce(c.lost_since, EXCLUDED.lost_since) END
