-- SQL of runs over dead letters. Every query is PREPAREd by a test.

-- name: start_run
-- A run over some letters of a job. $1 job, $2 kind, $3 state, $4 digest, $5 how many letters, $6 forced, $7 reason,
-- $8 asked by.
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
    UPDATE tidegate.dead_letter AS d
    SET state = 'replaying'
    FROM mine AS m
    WHERE d.id = m.id
    RETURNING d.id
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
SELECT DISTINCT r.replay
FROM tidegate.replay_letter AS r
WHERE r.letter = ANY ($1::uuid[]) AND r.outcome IS NULL
ORDER BY r.replay;

-- name: read_run
-- One run of a service. $1 service, $2 run.
SELECT
    r.id, j.code AS job, r.kind, r.state, r.digest, r.letters, r.parked, r.failed_events, r.is_forced, r.reason,
    r.asked_by, r.approved_by, r.stop_asked_by, r.holder, r.created_at, r.finished_at,
    r.state = 'running' AND r.lease_until <= now() AS is_stalled
FROM tidegate.replay AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND r.id = $2;

-- name: recent_runs
-- The newest runs of a service. $1 service, $2 job code or NULL, $3 how many.
SELECT
    r.id, j.code AS job, r.kind, r.state, r.digest, r.letters, r.parked, r.failed_events, r.is_forced, r.reason,
    r.asked_by, r.approved_by, r.stop_asked_by, r.holder, r.created_at, r.finished_at,
    r.state = 'running' AND r.lease_until <= now() AS is_stalled
FROM tidegate.replay AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.service = $1 AND ($2::text IS NULL OR j.code = $2)
ORDER BY r.id DESC
LIMIT $3;

-- name: outcomes_of_run
-- What became of the letters of a run; outcome NULL: nothing yet. $1 run.
SELECT r.outcome, count(*) AS letters
FROM tidegate.replay_letter AS r
WHERE r.replay = $1
GROUP BY r.outcome;

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
SELECT
    r.state, r.is_forced, r.asked_by, r.approved_by, r.holder,
    r.state = 'running' AND r.lease_until > now() AS is_held
FROM tidegate.replay AS r
WHERE r.job = $1 AND r.id = $2
FOR UPDATE;

-- name: is_held
-- Whether a run has a runner that lives. $1 run.
SELECT r.state = 'running' AND r.lease_until > now() AS is_held
FROM tidegate.replay AS r
WHERE r.id = $1;

-- name: stalled_runs
-- Runs of a job whose runners are gone. $1 job.
SELECT r.id
FROM tidegate.replay AS r
WHERE r.job = $1 AND r.state = 'running' AND r.lease_until <= now();

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
SELECT r.id
FROM tidegate.replay AS r
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
UPDATE tidegate.replay AS r
SET state = $2, holder = NULL, lease_until = NULL, finished_at = now()
WHERE r.id = $1;

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
SELECT r.letter
FROM tidegate.replay_letter AS r
WHERE r.replay = $1 AND r.outcome = ANY ($2::text[]);

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
    UPDATE tidegate.replay_letter AS r
    SET outcome = $2, decided_at = now()
    WHERE r.replay = $1 AND r.outcome IS NULL
    RETURNING r.letter, r.was
)
UPDATE tidegate.dead_letter AS d
SET state = l.was
FROM left_over AS l
-- Not "=", as in letters_of_run.
WHERE d.id = l.letter AND d.state IS NOT DISTINCT FROM 'replaying';
