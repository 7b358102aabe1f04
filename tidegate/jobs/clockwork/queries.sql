-- SQL of jobs by the clock. Every query is PREPAREd by a test.

-- name: begin_clock
-- A schedule that nobody has seen before, or another one than before, owes nothing: it begins now. $1 job, $2 now,
-- $3 the schedule in words.
INSERT INTO tidegate.job_clock AS c (job, scheduled_until, schedule)
VALUES ($1, $2, $3)
ON CONFLICT (job) DO UPDATE
SET scheduled_until = greatest(c.scheduled_until, EXCLUDED.scheduled_until), schedule = EXCLUDED.schedule
WHERE c.schedule IS DISTINCT FROM EXCLUDED.schedule

-- name: read_clocks
-- How far the schedules of some jobs have become runs, and whether the whole of the job is paused. $1 jobs.
SELECT
    c.job, c.scheduled_until,
    EXISTS (
        SELECT FROM tidegate.intent AS i
        WHERE i.job = c.job AND i.kind = 'pause' AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
            AND i.topic IS NULL AND i.partition IS NULL AND i.tenant IS NULL
    ) AS is_paused
FROM tidegate.job_clock AS c
WHERE c.job = ANY($1::smallint[])

-- name: schedule_runs
-- One run of an occurrence for each scope, unless another scheduler was quicker; while an earlier one of the scope has not
-- ended, it is recorded as skipped where $9. $1 job, $2 occurrence, $3 tenants, $4 brands, $5 when each may begin,
-- $6 names of their leases, $7 missed, $8 now, $9 whether overlapping ones are skipped.
INSERT INTO tidegate.job_run (
    job, tenant, brand, scheduled_at, due_at, trigger, lock_name, missed, state, finished_at
)
SELECT
    $1, s.tenant, s.brand, $2, s.due_at, 'schedule', s.lock_name, $7,
    CASE WHEN o.overlaps THEN 'skipped_overlap' ELSE 'due' END,
    CASE WHEN o.overlaps THEN $8::timestamptz END
FROM unnest($3::text[], $4::text[], $5::timestamptz[], $6::text[]) AS s (tenant, brand, due_at, lock_name)
CROSS JOIN LATERAL (
    SELECT $9::boolean AND EXISTS (
        SELECT FROM tidegate.job_run AS r
        WHERE r.job = $1 AND r.tenant = s.tenant AND r.brand = s.brand AND r.state IN ('due', 'running')
            AND r.scheduled_at <= $2
    ) AS overlaps
) AS o
ORDER BY s.tenant, s.brand
ON CONFLICT (job, tenant, brand, scheduled_at) WHERE trigger = 'schedule' DO NOTHING
RETURNING state

-- name: move_clock
-- All occurrences up to $2 have their runs. $1 job.
UPDATE tidegate.job_clock SET scheduled_until = greatest(scheduled_until, $2) WHERE job = $1

-- name: look
-- What there is to do for some jobs: how many runs of each are due and when the next is, and which runs have nobody who
-- works on them any more. A lease that has ended is never renewed, so what is found gone stays gone. $1 jobs.
SELECT
    d.next_due_at, coalesce(d.jobs, '{}') AS jobs, coalesce(d.runs, '{}') AS runs,
    coalesce(g.ids, '{}') AS gone, coalesce(g.tokens, '{}') AS tokens
FROM (
    SELECT min(w.due_at) AS next_due_at, array_agg(w.job) AS jobs, array_agg(w.runs) AS runs
    FROM (
        SELECT r.job, min(r.due_at) AS due_at, count(*) AS runs
        FROM tidegate.job_run AS r
        WHERE r.job = ANY($1::smallint[]) AND r.state = 'due'
        GROUP BY r.job
    ) AS w
) AS d
CROSS JOIN (
    SELECT array_agg(o.id) AS ids, array_agg(o.token) AS tokens
    FROM (
        SELECT r.id, r.token
        FROM tidegate.job_run AS r
        WHERE r.job = ANY($1::smallint[]) AND r.state = 'running' AND NOT EXISTS (
            SELECT FROM tidegate.lease AS l
            WHERE l.name = r.lock_name AND l.token = r.token AND l.expires_at > now()
        )
        LIMIT 100
    ) AS o
) AS g

-- name: claim_runs
-- At most $3 runs that are due, whose scope nobody works on and nobody has paused, are the holder's, each under a new token
-- of its lease. $1 jobs, $2 now, $3 how many, $4 holder, $5 seconds that the leases last.
WITH free AS (
    SELECT r.id, r.lock_name, r.due_at
    FROM tidegate.job_run AS r
    WHERE r.state = 'due' AND r.job = ANY($1::smallint[]) AND r.due_at <= $2
        AND NOT EXISTS (
            SELECT FROM tidegate.lease AS l WHERE l.name = r.lock_name AND l.expires_at > now()
        )
        AND NOT EXISTS (
            SELECT FROM tidegate.intent AS i
            WHERE i.job = r.job AND i.kind = 'pause' AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
                AND i.topic IS NULL AND i.partition IS NULL AND (i.tenant IS NULL OR i.tenant = r.tenant)
        )
    ORDER BY r.due_at, r.id
    LIMIT $3
    FOR UPDATE OF r SKIP LOCKED
),
chosen AS (
    SELECT DISTINCT ON (f.lock_name) f.id, f.lock_name FROM free AS f ORDER BY f.lock_name, f.due_at, f.id
),
leased AS (
    INSERT INTO tidegate.lease AS l (name, holder, token, expires_at)
    SELECT f.lock_name, $4, 1, now() + make_interval(secs => $5) FROM chosen AS f ORDER BY f.lock_name
    ON CONFLICT (name) DO UPDATE
    SET holder = EXCLUDED.holder, token = l.token + 1, taken_at = now(), expires_at = EXCLUDED.expires_at
    WHERE l.expires_at <= now()
    RETURNING name, token
)
UPDATE tidegate.job_run AS r
SET state = 'running', holder = $4, token = l.token, started_at = coalesce(r.started_at, now()), moved_at = now()
FROM chosen AS f
JOIN leased AS l ON l.name = f.lock_name
WHERE r.id = f.id
RETURNING
    r.id, r.job, r.tenant, r.brand, r.scheduled_at, r.started_at, r.trigger, r.lock_name, r.missed, r.attempt,
    coalesce(r.first_run, r.id) AS first_run, r.parameters, r.correlation_id, r.token, r.processed, r.skipped, r.failed

-- name: held_up_runs
-- How many runs of some jobs are due and wait because another run has their lease. $1 jobs, $2 now.
SELECT r.job, count(*) AS runs
FROM tidegate.job_run AS r
JOIN tidegate.lease AS l ON l.name = r.lock_name AND l.expires_at > now()
WHERE r.job = ANY($1::smallint[]) AND r.state = 'due' AND r.due_at <= $2
GROUP BY r.job

-- name: read_checkpoint
-- Where a run goes on. $1 job, $2 tenant, $3 brand, $4 the run that it goes on with; NULL: whichever was the last.
SELECT c.cursor
FROM tidegate.job_checkpoint AS c
WHERE c.job = $1 AND c.tenant = $2 AND c.brand = $3 AND ($4::bigint IS NULL OR c.first_run = $4)

-- name: take_items
-- In the transaction that does them: which items nobody has done yet; they are done if it commits. Whoever does one of them
-- at the same time is waited for, and Postgres ends the transaction when its owner is silent for too long: one that was
-- frozen would hold up for ever whoever goes on. $1 job, $2 tenant, $3 brand, $4 keys (distinct), $5 run, $6 milliseconds.
WITH silence AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', $6::text, true)
)
INSERT INTO tidegate.job_item AS i (job, tenant, brand, key, run, outcome)
SELECT $1, $2, $3, k.key, $5, 'done'
FROM unnest($4::text[]) AS k (key)
CROSS JOIN silence
ORDER BY k.key COLLATE "C"
ON CONFLICT (job, tenant, brand, key) DO UPDATE
SET run = EXCLUDED.run, outcome = 'done', error_class = NULL, error_message = NULL, decided_at = now()
WHERE i.outcome = 'failed'
RETURNING key

-- name: give_up_items
-- Items that were taken in this transaction have failed. $1 job, $2 tenant, $3 brand, $4 keys, $5 outcome, $6 classes of
-- their errors, $7 messages.
UPDATE tidegate.job_item AS i
SET outcome = $5, error_class = g.error_class, error_message = g.error_message
FROM unnest($4::text[], $6::text[], $7::text[]) AS g (key, error_class, error_message)
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.key = g.key

-- name: settle_unit
-- In the transaction that did the items: the run is still its holder's, has come this far, and nobody takes its lease until
-- the transaction ends. No row: it is somebody else's, or has ended. $1 run, $2 name of its lease, $3 token, $4 processed,
-- $5 skipped, $6 failed, $7 key of the last item (NULL: none).
WITH held AS (
    SELECT l.token FROM tidegate.lease AS l WHERE l.name = $2 AND l.token = $3 FOR SHARE
),
moved AS (
    UPDATE tidegate.job_run AS r
    SET processed = r.processed + $4, skipped = r.skipped + $5, failed = r.failed + $6, moved_at = now()
    FROM held AS h
    WHERE r.id = $1 AND r.token = h.token AND r.state = 'running'
    RETURNING r.id, r.job, r.tenant, r.brand, r.first_run, r.token, r.cancel_asked_by
),
progress AS (
    INSERT INTO tidegate.job_checkpoint AS c (job, tenant, brand, cursor, first_run, token)
    SELECT m.job, m.tenant, m.brand, $7, coalesce(m.first_run, m.id), m.token FROM moved AS m WHERE $7::text IS NOT NULL
    ON CONFLICT (job, tenant, brand) DO UPDATE
    SET cursor = EXCLUDED.cursor, first_run = EXCLUDED.first_run, token = EXCLUDED.token, moved_at = now()
)
SELECT
    m.cancel_asked_by,
    EXISTS (
        SELECT FROM tidegate.intent AS i
        WHERE i.job = m.job AND i.kind = 'pause' AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
            AND i.topic IS NULL AND i.partition IS NULL AND (i.tenant IS NULL OR i.tenant = m.tenant)
    ) AS is_paused
FROM moved AS m

-- name: progress_of_run
-- How far a run has come by its holder. No row: it is somebody else's, or has ended. $1 run, $2 token.
SELECT r.processed, r.skipped, r.failed, r.cancel_asked_by
FROM tidegate.job_run AS r
WHERE r.id = $1 AND r.token = $2 AND r.state = 'running'

-- name: end_run
-- The run has come to an end, by its holder. No row: it is somebody else's, or has ended. $1 run, $2 name of its lease,
-- $3 token, $4 state, $5 class of the error, $6 its message.
WITH held AS (
    SELECT l.token FROM tidegate.lease AS l WHERE l.name = $2 AND l.token = $3 FOR SHARE
)
UPDATE tidegate.job_run AS r
SET state = $4, finished_at = now(), moved_at = now(), error_class = $5, error_message = $6
FROM held AS h
WHERE r.id = $1 AND r.token = h.token AND r.state = 'running'
RETURNING r.id

-- name: put_back
-- The run is due again and goes on later where it is, by whoever is first. No row: it is somebody else's, or has ended.
-- $1 run, $2 name of its lease, $3 token, $4 when it may begin.
WITH held AS (
    SELECT l.token FROM tidegate.lease AS l WHERE l.name = $2 AND l.token = $3 FOR SHARE
)
UPDATE tidegate.job_run AS r
SET state = 'due', due_at = $4, moved_at = now()
FROM held AS h
WHERE r.id = $1 AND r.token = h.token AND r.state = 'running'
RETURNING r.id

-- name: state_under
-- How a run stands, for whoever lost the answer that ended it. $1 run, $2 token.
SELECT r.state FROM tidegate.job_run AS r WHERE r.id = $1 AND r.token = $2

-- name: end_stalled
-- Runs that were found without anybody who works on them have ended. $1 ids, $2 tokens under which they were found.
UPDATE tidegate.job_run AS r
SET state = 'stalled', finished_at = now(), error_class = 'stalled',
    error_message = 'its process has not been heard of for the time of its lease'
FROM unnest($1::bigint[], $2::bigint[]) AS g (id, token)
WHERE r.id = g.id AND r.token = g.token AND r.state = 'running'
RETURNING r.id, r.job, r.tenant, r.brand, r.attempt, r.cancel_asked_by

-- name: retry_run
-- A run that goes on with one that has ended badly. $1 the run, $2 when it may begin.
INSERT INTO tidegate.job_run (
    job, tenant, brand, scheduled_at, due_at, trigger, lock_name, attempt, first_run, parameters, asked_by, reason,
    correlation_id
)
SELECT
    r.job, r.tenant, r.brand, r.scheduled_at, $2, 'retry', r.lock_name, r.attempt + 1, coalesce(r.first_run, r.id),
    r.parameters, r.asked_by, r.reason, r.correlation_id
FROM tidegate.job_run AS r
WHERE r.id = $1
RETURNING id

-- name: ask_for_run
-- A run by hand; with a key that was used before nothing is made. $1 job, $2 tenant, $3 brand, $4 what it is made for,
-- $5 when it may begin, $6 name of its lease, $7 parameters as JSON, $8 key, $9 by whom, $10 why.
INSERT INTO tidegate.job_run (
    job, tenant, brand, scheduled_at, due_at, trigger, lock_name, parameters, idempotency_key, asked_by, reason
)
VALUES ($1, $2, $3, $4, $5, 'manual', $6, $7, $8, $9, $10)
ON CONFLICT (job, tenant, brand, idempotency_key) DO NOTHING
RETURNING id

-- name: run_of_request
-- The run that was asked for under a key, and what with. $1 job, $2 tenant, $3 brand, $4 key.
SELECT r.id, r.parameters
FROM tidegate.job_run AS r
WHERE r.job = $1 AND r.tenant = $2 AND r.brand = $3 AND r.idempotency_key = $4

-- name: scope_of_run
-- Whose data a run works on. $1 service, $2 run.
SELECT j.code, r.tenant, r.brand
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND r.id = $2

-- name: lock_clock_run
-- A run that is to be decided about; nobody else decides meanwhile. $1 service, $2 run.
SELECT r.state
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND r.id = $2
FOR UPDATE OF r

-- name: cancel_due_run
-- $1 run, $2 by whom.
UPDATE tidegate.job_run SET state = 'cancelled', finished_at = now(), cancel_asked_by = $2 WHERE id = $1

-- name: ask_to_cancel_run
-- Its holder ends it after the unit in hand. $1 run, $2 by whom.
UPDATE tidegate.job_run SET cancel_asked_by = $2 WHERE id = $1

-- name: clock_runs
-- The newest runs of a service, newest first. $1 service, $2 job (NULL: all), $3 how many.
SELECT
    r.id, j.code, r.tenant, r.brand, r.scheduled_at, r.due_at, r.trigger, r.state, r.missed, r.attempt, r.first_run,
    r.asked_by, r.reason, r.correlation_id, r.holder, r.processed, r.skipped, r.failed, r.cancel_asked_by, r.error_class,
    r.error_message, r.created_at, r.started_at, r.moved_at, r.finished_at
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND ($2::text IS NULL OR j.code = $2)
ORDER BY r.id DESC
LIMIT $3

-- name: drop_ended_runs
-- Some of the runs of a job that ended long ago. $1 job, $2 before when, $3 how many.
DELETE FROM tidegate.job_run
WHERE id IN (
    SELECT r.id FROM tidegate.job_run AS r
    WHERE r.job = $1 AND r.finished_at < $2
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
RETURNING id

-- name: drop_done_items
-- Some of the results of items that were done long ago. $1 job, $2 before when, $3 how many.
DELETE FROM tidegate.job_item AS i
USING (
    SELECT d.job, d.tenant, d.brand, d.key FROM tidegate.job_item AS d
    WHERE d.job = $1 AND d.outcome = 'done' AND d.decided_at < $2
    LIMIT $3
    FOR UPDATE SKIP LOCKED
) AS old
WHERE i.job = old.job AND i.tenant = old.tenant AND i.brand = old.brand AND i.key = old.key
RETURNING i.key

-- name: lost_items
-- Items of a service's jobs that failed and have not been done since, newest first. $1 service, $2 job (NULL: all),
-- $3 how many.
SELECT j.code, i.tenant, i.brand, i.key, i.run, i.outcome, i.error_class, i.error_message, i.decided_at
FROM tidegate.job_item AS i
JOIN tidegate.job AS j ON j.id = i.job
WHERE j.service = $1 AND ($2::text IS NULL OR j.code = $2) AND i.outcome <> 'done'
ORDER BY i.decided_at DESC, i.key
LIMIT $3

-- name: release_items
-- Quarantined items of a scope are tried again by the next run that meets them. $1 job, $2 tenant, $3 brand,
-- $4 keys (NULL: all).
UPDATE tidegate.job_item AS i
SET outcome = 'failed'
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome = 'quarantined'
    AND ($4::text[] IS NULL OR i.key = ANY($4))
RETURNING i.key
