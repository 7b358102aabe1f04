-- name: claim_events
-- Locks the caller's own position and takes every id that is new to the job, as one statement of its transaction.
-- $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset, $7 buckets, $8 ids (distinct pairs),
-- $9 milliseconds after which Postgres ends this transaction should its owner fall silent, $10 whether to look for
-- blocked keys. Returns whether the fence held, the 1-based places of the ids that had been claimed before, and whether any
-- key of the job is blocked: asked last, and by a snapshot of its own, when every id is taken.
WITH fence AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', $9::text, true)
    FROM tidegate.position
    WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
    FOR UPDATE
),
taken AS (
    INSERT INTO tidegate.inbox (job, bucket, id)
    SELECT $1, k.bucket, k.id
    FROM fence, unnest($7::date[], $8::uuid[]) AS k (bucket, id)
    ORDER BY k.bucket, k.id
    ON CONFLICT DO NOTHING
    RETURNING bucket, id
)
SELECT
    EXISTS (SELECT FROM fence) AS fenced,
    CASE
        WHEN (SELECT count(*) FROM taken) = cardinality($8::uuid[]) THEN '{}'::bigint[]
        ELSE ARRAY(
            SELECT k.place
            FROM unnest($7::date[], $8::uuid[]) WITH ORDINALITY AS k (bucket, id, place)
            WHERE NOT EXISTS (SELECT FROM taken AS t WHERE t.bucket = k.bucket AND t.id = k.id)
            ORDER BY k.place
        )
    END AS duplicates,
    CASE WHEN $10 THEN tidegate.has_blocked_key($1::smallint, (SELECT count(*) FROM taken)) ELSE false END AS is_blocked;

-- name: claim_and_settle
-- Moves the caller's own position and takes every id that is new to the job, in one statement: effects are out already.
-- $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset, $7 buckets, $8 ids (distinct pairs),
-- $9 new next offset. Returns as claim_events.
WITH fence AS (
    UPDATE tidegate.position
    SET next_offset = $9, moved_at = now()
    WHERE job = $1 AND run = $2 AND topic = $3 AND partition = $4 AND epoch = $5 AND next_offset = $6
    RETURNING 1
),
taken AS (
    INSERT INTO tidegate.inbox (job, bucket, id)
    SELECT $1, k.bucket, k.id
    FROM fence, unnest($7::date[], $8::uuid[]) AS k (bucket, id)
    ORDER BY k.bucket, k.id
    ON CONFLICT DO NOTHING
    RETURNING bucket, id
)
SELECT
    EXISTS (SELECT FROM fence) AS fenced,
    CASE
        WHEN (SELECT count(*) FROM taken) = cardinality($8::uuid[]) THEN '{}'::bigint[]
        ELSE ARRAY(
            SELECT k.place
            FROM unnest($7::date[], $8::uuid[]) WITH ORDINALITY AS k (bucket, id, place)
            WHERE NOT EXISTS (SELECT FROM taken AS t WHERE t.bucket = k.bucket AND t.id = k.id)
            ORDER BY k.place
        )
    END AS duplicates;

-- name: claim_for_letters
-- Takes ids as of some days, or as of today if a clock that was ahead told them; returns those that are new. $1 job,
-- $2 buckets, $3 ids (distinct pairs), $4 the days.
INSERT INTO tidegate.inbox (job, bucket, id, claimed_on)
SELECT $1, k.bucket, k.id, least(k.made_on, tidegate.today())
FROM unnest($2::date[], $3::uuid[], $4::date[]) AS k (bucket, id, made_on)
ORDER BY k.bucket, k.id
ON CONFLICT DO NOTHING
RETURNING bucket, id;

-- name: job_number
-- Returns number and stored claim rule of a job; the first caller's rule is the one that is kept.
-- The row is locked against whoever else registers or pauses the job, and no column of a key is named: that would wait for
-- every transaction that has written of the job, a handler at work among them, and hold up those behind it.
-- $1 service, $2 code, $3 generation, $4 claim rule.
INSERT INTO tidegate.job AS j (service, code, generation, claim_rule)
VALUES ($1, $2, $3, $4)
ON CONFLICT (service, code, generation) DO UPDATE SET claim_rule = j.claim_rule
RETURNING id, claim_rule;

-- name: find_job
-- Returns the number of a job that has started before. $1 service, $2 code, $3 generation.
SELECT id FROM tidegate.job WHERE service = $1 AND code = $2 AND generation = $3;

-- name: keep_horizon
-- Notes how long claims of a job are kept. $1 job, $2 days, NULL for ever.
UPDATE tidegate.job
SET horizon_days = $2
WHERE id = $1 AND horizon_days IS DISTINCT FROM $2;

-- name: claims_since
-- Since when all claims of a job are still there, NULL if none was ever forgotten. $1 job.
SELECT claims_since FROM tidegate.job WHERE id = $1;

-- name: missing_days
-- Days that have no partition of their own and no row in the default partition; coming days first.
SELECT d::date AS day
FROM generate_series(tidegate.first_inbox_day()::timestamp, tidegate.today() + 7, interval '1 day') AS d
WHERE tidegate.inbox_leaf(d::date) IS NULL
    -- By each job's part of the index: the default partition may be large.
    AND NOT EXISTS (
        SELECT FROM tidegate.job AS j
        CROSS JOIN LATERAL (SELECT FROM tidegate.inbox_default AS i WHERE i.job = j.id AND i.bucket = d::date LIMIT 1) AS i
    )
ORDER BY d::date < tidegate.today(), d;

-- name: attach_day
-- Gives a day its partition; whether it is new. $1 day.
SELECT tidegate.attach_inbox_day($1);

-- name: days_past_horizon
-- Days with a partition that are older than the shortest horizon, oldest first.
SELECT to_date(substr(c.relname, 7), 'YYYYMMDD') AS day
FROM pg_inherits AS h
JOIN pg_class AS c ON c.oid = h.inhrelid
WHERE h.inhparent = 'tidegate.inbox'::regclass
    AND c.relname ~ '^inbox_[0-9]{8}$'
    AND to_date(substr(c.relname, 7), 'YYYYMMDD') < tidegate.today() - (SELECT min(j.horizon_days) FROM tidegate.job AS j)
ORDER BY 1;

-- name: watch_day
-- Notes claims that still arrive for a day; whether it may be emptied then. $1 day.
SELECT tidegate.watch_inbox_day($1);

-- name: empty_day
-- Empties a watched day that no job needs any more; whether it did. $1 day.
SELECT tidegate.empty_inbox_day($1);

-- name: drop_day
-- Drops the empty partition of a day; whether it is gone. $1 day.
SELECT tidegate.drop_inbox_day($1);

-- name: sweep
-- Removes claims past the horizon from the next pages of a part. $1 part, $2 pages.
SELECT s.removed, s.is_finished FROM tidegate.sweep_inbox($1, $2) AS s;

-- name: take_upkeep
-- The caller keeps the inbox for a while, unless somebody else does or did so a short time ago.
-- $1 holder, $2 seconds, $3 seconds between rounds that came to their end.
UPDATE tidegate.inbox_upkeep
SET holder = $1, lease_until = now() + make_interval(secs => $2)
WHERE holder = $1
    OR lease_until < now()
    OR holder IS NULL AND (error IS NOT NULL OR succeeded_at IS NULL OR succeeded_at < now() - make_interval(secs => $3))
RETURNING true;

-- name: end_round
-- Notes how a round ended and gives the upkeep free. $1 holder, $2 what stood in its way, NULL if it came to its end.
UPDATE tidegate.inbox_upkeep
SET holder = NULL,
    succeeded_at = CASE WHEN $2::text IS NULL THEN now() ELSE succeeded_at END,
    failing_since = CASE WHEN $2::text IS NULL THEN NULL ELSE coalesce(failing_since, now()) END,
    error = $2
WHERE holder = $1;

-- name: upkeep_state
-- When upkeep last came to its end, and what has stood in its way since when. is_failing: for longer than locks that
-- are in use now and then explain. is_stale: no worker has come to the end of a round for a day.
SELECT
    succeeded_at,
    failing_since,
    error,
    coalesce(failing_since < now() - interval '15 minutes', false) AS is_failing,
    coalesce(succeeded_at < now() - interval '1 day', false) AS is_stale
FROM tidegate.inbox_upkeep;

-- name: inbox_size
-- What each part of the inbox holds: rows as the statistics know them, partitions, age of the oldest claim in days
-- (as the last sweep found it; days that are dropped as a whole have none).
SELECT
    CASE c.relname WHEN 'inbox_default' THEN 'default' WHEN 'inbox_constant' THEN 'constant' ELSE 'days' END AS part,
    count(*) AS partitions,
    sum(pg_stat_get_live_tuples(c.oid))::bigint AS live,
    sum(pg_stat_get_dead_tuples(c.oid))::bigint AS dead,
    max(tidegate.today() - s.oldest) AS oldest_days
FROM pg_inherits AS h
JOIN pg_class AS c ON c.oid = h.inhrelid
LEFT JOIN tidegate.inbox_sweep AS s ON c.relname = 'inbox_' || s.part
WHERE h.inhparent = 'tidegate.inbox'::regclass
GROUP BY 1;

-- name: claim_again
-- Takes ids for events that are handled by hand; returns those that are new. $1 job, $2 buckets, $3 ids (distinct pairs).
INSERT INTO tidegate.inbox (job, bucket, id)
SELECT $1, k.bucket, k.id
FROM unnest($2::date[], $3::uuid[]) AS k (bucket, id)
ORDER BY k.bucket, k.id
ON CONFLICT DO NOTHING
RETURNING bucket, id;

-- name: claims_of_others
-- The 1-based places of claims that are not those of the letters which ask. $1 job, $2 buckets, $3 ids, $4 the days of
-- which the claims of the letters are at the latest; NULL: the letter had made none.
SELECT k.place
FROM unnest($2::date[], $3::uuid[], $4::date[]) WITH ORDINALITY AS k (bucket, id, claimed_on, place)
JOIN tidegate.inbox AS i ON i.job = $1 AND i.bucket = k.bucket AND i.id = k.id
-- A day for letters that know theirs by a worker's clock, as they did once: a claim is forgotten after a whole day at
-- least, so one made anew is younger than that.
WHERE k.claimed_on IS NULL OR i.claimed_on > k.claimed_on + 1;
