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
            AND r.scheduled_at <= $2 AND NOT r.is_replay
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
-- works on them any more. A lease that has ended is never renewed, so what is found gone stays gone. $1 jobs, $2 now.
SELECT
    now() AS now, d.next_due_at, coalesce(d.jobs, '{}') AS jobs, coalesce(d.runs, '{}') AS runs,
    coalesce(g.ids, '{}') AS gone, coalesce(g.tokens, '{}') AS tokens
FROM (
    SELECT min(w.due_at) AS next_due_at, array_agg(w.job) AS jobs, array_agg(w.runs) AS runs
    FROM (
        SELECT r.job, min(r.due_at) AS due_at, count(*) FILTER (WHERE r.due_at <= $2) AS runs
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
-- Of the $3 runs that are due for longest, whose scope nobody works on and nobody has paused, one for each lease is the
-- holder's, under a new token. `candidates`: how many there were; where that is $3, there may be others behind them. $1 jobs,
-- $2 now, $3 how many, $4 holder, $5 seconds that the leases last.
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
    coalesce(r.first_run, r.id) AS first_run, r.parameters, r.correlation_id, r.token, r.processed, r.skipped, r.failed,
    r.is_replay, (SELECT count(*) FROM free) AS candidates

-- name: held_up_runs
-- How many runs of some jobs are due and wait because another run has their lease. $1 jobs, $2 now.
SELECT r.job, count(*) AS runs
FROM tidegate.job_run AS r
JOIN tidegate.lease AS l ON l.name = r.lock_name AND l.expires_at > now()
WHERE r.job = ANY($1::smallint[]) AND r.state = 'due' AND r.due_at <= $2
GROUP BY r.job

-- name: last_successes
-- Of each job the scope that has waited longest for a run that ended well: since when, or since when the first is due; and
-- how far its provider has been asked, where it has one. What was told something, and what does single items again, does not
-- count. $1 jobs, $2 tenants, $3 brands.
SELECT
    s.job,
    min(coalesce(d.finished_at, b.due_at, j.declared_at)) AS succeeded_at,
    CASE WHEN bool_and(c.synced_until IS NOT NULL) THEN min(c.synced_until) END AS synced_until
FROM unnest($1::smallint[], $2::text[], $3::text[]) AS s (job, tenant, brand)
JOIN tidegate.job AS j ON j.id = s.job
LEFT JOIN LATERAL (
    SELECT r.finished_at
    FROM tidegate.job_run AS r
    WHERE r.job = s.job AND r.tenant = s.tenant AND r.brand = s.brand AND r.state = 'done' AND NOT r.is_replay
        AND r.parameters = '{}'
    ORDER BY r.finished_at DESC
    LIMIT 1
) AS d ON true
LEFT JOIN LATERAL (
    SELECT r.due_at
    FROM tidegate.job_run AS r
    WHERE r.job = s.job AND r.tenant = s.tenant AND r.brand = s.brand AND r.trigger = 'schedule'
    ORDER BY r.scheduled_at
    LIMIT 1
) AS b ON d.finished_at IS NULL
LEFT JOIN tidegate.provider_cursor AS c ON c.job = s.job AND c.tenant = s.tenant AND c.brand = s.brand
GROUP BY s.job

-- name: read_checkpoint
-- Where a run goes on. $1 job, $2 tenant, $3 brand, $4 the run that it goes on with; NULL: whichever was the last.
SELECT c.cursor
FROM tidegate.job_checkpoint AS c
WHERE c.job = $1 AND c.tenant = $2 AND c.brand = $3 AND ($4::bigint IS NULL OR c.first_run = $4)

-- name: are_ascending
-- Whether each of some keys is behind the one before it, by the database's own collation. $1 keys.
SELECT coalesce(bool_and(k.key > k.key_before), true)
FROM (
    SELECT u.key, lag(u.key) OVER (ORDER BY u.place) AS key_before
    FROM unnest($1::text[]) WITH ORDINALITY AS u (key, place)
) AS k
WHERE k.key_before IS NOT NULL

-- name: take_items
-- In the transaction that does them: which items nobody has done yet; they are done if it commits. `letter`: the dead letter
-- that one has been until now, which goes on to tell why it failed. Of what was erased a digest of its key is left: nobody
-- does that (a scalar subquery, so that each key costs a probe and no plan reads all that the job has). Whoever does one of
-- them at the same time is waited for, and Postgres ends the transaction when its owner is silent for too long: one that was
-- frozen would hold up for ever whoever goes on. $1 job, $2 tenant, $3 brand, $4 keys (distinct), $5 run, $6 milliseconds,
-- $7 token.
WITH silence AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', $6::text, true)
)
INSERT INTO tidegate.job_item AS i (job, tenant, brand, key, run, token, outcome)
SELECT $1, $2, $3, k.key, $5, $7, 'done'
FROM unnest($4::text[]) AS k (key)
CROSS JOIN silence
WHERE (
    SELECT true FROM tidegate.job_item AS e
    WHERE e.job = $1 AND e.tenant = $2 AND e.brand = $3
        AND e.key = 'erased ' || encode(sha256(convert_to(k.key, 'UTF8')), 'hex')
) IS NULL
ORDER BY k.key COLLATE "C"
ON CONFLICT (job, tenant, brand, key) DO UPDATE
SET
    run = EXCLUDED.run, token = EXCLUDED.token, outcome = 'done', replay = NULL, decided_at = now(),
    error_class = CASE WHEN i.letter IS NOT NULL THEN i.error_class END,
    error_message = CASE WHEN i.letter IS NOT NULL THEN i.error_message END
WHERE i.outcome = 'failed'
RETURNING key, letter, decided_at

-- name: give_up_items
-- Items that were taken in this transaction have failed. $1 job, $2 tenant, $3 brand, $4 keys, $5 outcome, $6 what their run
-- was made for, $7 its correlation id, $8 letters (NULL: none), $9 places, $10 keys that their pages began behind,
-- $11 reasons, $12 handlers, $13 classes of their errors, $14 messages, $15 stacks, $16 fingerprints, $17 attempts, $18 after
-- how many replays a letter that fails is quarantined.
UPDATE tidegate.job_item AS i
SET outcome = $5, scheduled_at = $6, correlation_id = $7, letter = coalesce(i.letter, g.letter), place = g.place,
    page_after = g.page_after, reason = g.reason, handler = g.handler, error_class = g.error_class,
    error_message = g.error_message, stack = g.stack, fingerprint = g.fingerprint, attempts = g.attempts,
    occurrences = coalesce(i.occurrences, 0) + 1, first_failed_at = coalesce(i.first_failed_at, now()),
    last_failed_at = now(),
    is_quarantined = coalesce(i.letter, g.letter) IS NOT NULL AND coalesce(i.replays, 0) >= $18::integer
FROM unnest(
    $4::text[], $8::uuid[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
    $16::text[], $17::integer[]
) AS g (
    key, letter, place, page_after, reason, handler, error_class, error_message, stack, fingerprint, attempts
)
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.key = g.key
RETURNING i.key, i.letter, i.occurrences, i.first_failed_at, i.decided_at, coalesce(i.replays, 0) AS replays

-- name: items_of_replay
-- Items that a run is to do again, in their order. $1 the first run, $2 how many.
SELECT i.key, i.page_after
FROM tidegate.job_item AS i
WHERE i.replay = $1 AND i.outcome = 'failed'
ORDER BY i.place, i.key
LIMIT $2

-- name: miss_item
-- In a transaction that settles: an item that its query does not answer with any more stays where it was. $1 job, $2 tenant,
-- $3 brand, $4 key, $5 message, $6 after how many replays a letter that fails is quarantined.
UPDATE tidegate.job_item AS i
SET
    outcome = CASE WHEN i.letter IS NULL THEN 'failed' ELSE 'quarantined' END, replay = NULL, error_message = $5,
    last_failed_at = now(), is_quarantined = i.letter IS NOT NULL AND coalesce(i.replays, 0) >= $6::integer
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.key = $4 AND i.outcome = 'failed'

-- name: give_back_items
-- In the transaction in which a replay ends, and no other run goes on with it: what it has not come to is as it was before
-- somebody asked. $1 the run.
UPDATE tidegate.job_item AS i
SET
    outcome = CASE WHEN i.letter IS NULL THEN 'failed' ELSE 'quarantined' END, replay = NULL,
    replays = greatest(i.replays - 1, 0)
WHERE i.outcome = 'failed' AND i.replay = (
    SELECT coalesce(r.first_run, r.id) FROM tidegate.job_run AS r WHERE r.id = $1 AND r.is_replay
)

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
-- How far a run has come by its holder, and what somebody wants of it. No row: it is somebody else's, or has ended. $1 run,
-- $2 token.
SELECT
    r.processed, r.skipped, r.failed, r.cancel_asked_by,
    EXISTS (
        SELECT FROM tidegate.intent AS i
        WHERE i.job = r.job AND i.kind = 'pause' AND i.ended_at IS NULL AND (i.until IS NULL OR i.until > now())
            AND i.topic IS NULL AND i.partition IS NULL AND (i.tenant IS NULL OR i.tenant = r.tenant)
    ) AS is_paused
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
RETURNING r.cancel_asked_by

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
RETURNING r.id, r.job, r.tenant, r.brand, r.attempt, r.cancel_asked_by, r.correlation_id

-- name: retry_run
-- A run that goes on with one that has ended badly. $1 the run, $2 when it may begin.
INSERT INTO tidegate.job_run (
    job, tenant, brand, scheduled_at, due_at, trigger, lock_name, attempt, first_run, parameters, asked_by, reason,
    correlation_id, is_replay
)
SELECT
    r.job, r.tenant, r.brand, r.scheduled_at, $2, 'retry', r.lock_name, r.attempt + 1, coalesce(r.first_run, r.id),
    r.parameters, r.asked_by, r.reason, r.correlation_id, r.is_replay
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
-- The run that was asked for under a key, for when and what with. $1 job, $2 tenant, $3 brand, $4 key.
SELECT r.id, r.parameters, r.scheduled_at
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
-- Some of the runs of a job that ended long ago; not those whose items somebody has yet to decide about: a replay is told
-- what they were told. $1 job, $2 before when, $3 how many.
DELETE FROM tidegate.job_run
WHERE id IN (
    SELECT r.id FROM tidegate.job_run AS r
    WHERE r.job = $1 AND r.finished_at < $2 AND NOT EXISTS (
        SELECT FROM tidegate.job_item AS i WHERE i.run = r.id AND i.outcome <> 'done' AND i.outcome <> 'discarded'
    )
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
RETURNING id

-- name: drop_done_items
-- Some of the results of items that were done, or discarded, long ago; what is still a letter leaves as letters do, later.
-- $1 job, $2 before when, $3 how many.
DELETE FROM tidegate.job_item AS i
USING (
    SELECT d.job, d.tenant, d.brand, d.key FROM tidegate.job_item AS d
    WHERE d.job = $1 AND d.outcome IN ('done', 'discarded') AND d.letter IS NULL AND d.decided_at < $2
    LIMIT $3
    FOR UPDATE SKIP LOCKED
) AS old
WHERE i.job = old.job AND i.tenant = old.tenant AND i.brand = old.brand AND i.key = old.key
RETURNING i.key

-- name: drop_failed_items
-- Some of the items that failed long ago and were left to later occasions; a letter never is. $1 job, $2 before when, $3 how many.
DELETE FROM tidegate.job_item AS i
USING (
    SELECT d.job, d.tenant, d.brand, d.key FROM tidegate.job_item AS d
    WHERE d.job = $1 AND d.outcome = 'failed' AND d.letter IS NULL AND d.decided_at < $2
    LIMIT $3
    FOR UPDATE SKIP LOCKED
) AS old
WHERE i.job = old.job AND i.tenant = old.tenant AND i.brand = old.brand AND i.key = old.key
RETURNING i.key

-- name: lost_items
-- Items of a service's jobs that failed and that nobody has done or discarded since, newest first. $1 service, $2 job (NULL:
-- all), $3 how many.
SELECT
    j.code, i.tenant, i.brand, i.key, i.run, i.outcome, i.error_class, i.error_message, i.decided_at, i.letter, i.reason,
    i.handler, i.stack, i.fingerprint, i.attempts, i.occurrences, i.first_failed_at, i.scheduled_at, i.correlation_id,
    coalesce(i.replays, 0) AS replays, i.replay, i.is_quarantined
FROM tidegate.job_item AS i
JOIN tidegate.job AS j ON j.id = i.job
WHERE j.service = $1 AND ($2::text IS NULL OR j.code = $2) AND i.outcome IN ('failed', 'quarantined')
ORDER BY i.decided_at DESC, i.key
LIMIT $3

-- name: items_to_decide
-- Items of a scope that failed and that no run is about to do again, locked until somebody has decided about them. $1 job,
-- $2 tenant, $3 brand, $4 keys, $5 letters (both NULL: all letters of the scope).
SELECT
    i.key, i.letter, i.run, i.is_quarantined, coalesce(i.scheduled_at, i.decided_at) AS scheduled_at,
    coalesce(i.place, i.key) AS place
FROM tidegate.job_item AS i
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome IN ('failed', 'quarantined')
    AND (i.key = ANY($4::text[]) OR i.letter = ANY($5::uuid[]) OR (
        $4::text[] IS NULL AND $5::uuid[] IS NULL AND i.letter IS NOT NULL
    ))
    AND NOT EXISTS (
        SELECT FROM tidegate.job_run AS r
        WHERE i.replay IN (r.id, r.first_run) AND r.job = i.job AND r.state IN ('due', 'running')
    )
ORDER BY i.key
FOR UPDATE OF i

-- name: items_of_choice
-- The same for a plan: nothing is locked, and what a run is about to do again is told, too. $1 … $5 as for items_to_decide.
SELECT
    i.key, i.letter, i.reason, i.error_class, coalesce(i.first_failed_at, i.decided_at) AS first_failed_at,
    coalesce(i.last_failed_at, i.decided_at) AS last_failed_at, coalesce(i.occurrences, 1) AS occurrences,
    coalesce(i.scheduled_at, i.decided_at) AS scheduled_at, coalesce(i.replays, 0) AS replays, i.replay,
    tidegate.item_letter_state(i.outcome, i.replay, i.is_quarantined) AS state
FROM tidegate.job_item AS i
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.outcome IN ('failed', 'quarantined')
    AND (i.key = ANY($4::text[]) OR i.letter = ANY($5::uuid[]) OR (
        $4::text[] IS NULL AND $5::uuid[] IS NULL AND i.letter IS NOT NULL
    ))
ORDER BY i.key

-- name: ask_for_replay
-- A run that does items of one occasion again, with what the run was told in which they failed. $1 job, $2 tenant, $3 brand,
-- $4 what it was made for, $5 when it may begin, $6 name of its lease, $7 the run in which they failed, $8 by whom, $9 why.
INSERT INTO tidegate.job_run (
    job, tenant, brand, scheduled_at, due_at, trigger, lock_name, parameters, asked_by, reason, is_replay
)
SELECT
    $1, $2, $3, $4, $5, 'manual', $6,
    coalesce((SELECT r.parameters FROM tidegate.job_run AS r WHERE r.id = $7), '{}'), $8, $9, true
RETURNING id

-- name: replay_items
-- Items are to be done again by a run. $1 job, $2 tenant, $3 brand, $4 keys, $5 the run.
UPDATE tidegate.job_item AS i
SET outcome = 'failed', replay = $5, replays = coalesce(i.replays, 0) + 1
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.key = ANY($4::text[])

-- name: discard_items
-- Nobody will do these items. $1 job, $2 tenant, $3 brand, $4 keys.
UPDATE tidegate.job_item AS i
SET outcome = 'discarded', replay = NULL, decided_at = now()
WHERE i.job = $1 AND i.tenant = $2 AND i.brand = $3 AND i.key = ANY($4::text[])

-- name: is_outbox_full
-- Whether so many records wait for Kafka; reads no more of them. $1 how many.
SELECT count(*) >= $1 FROM (SELECT FROM tidegate.outbox AS o WHERE o.failed_at IS NULL LIMIT $1) AS w
