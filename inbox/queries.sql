-- name: claim_events
-- Locks the caller's own position and takes every id that is new to the job, as one statement of its transaction.
-- $1 job, $2 run, $3 topic, $4 partition, $5 epoch, $6 expected next offset, $7 buckets, $8 ids (distinct pairs),
-- $9 milliseconds after which Postgres ends this transaction should its owner fall silent.
-- Returns whether the fence held, and the 1-based places of the ids that had been claimed before.
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
    END AS duplicates;

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

-- name: job_number
-- Returns number and stored claim rule of a job; the first caller's rule is the one that is kept.
-- $1 service, $2 code, $3 generation, $4 claim rule.
INSERT INTO tidegate.job (service, code, generation, claim_rule)
VALUES ($1, $2, $3, $4)
ON CONFLICT (service, code, generation) DO UPDATE SET code = excluded.code
RETURNING id, claim_rule;

-- name: find_job
-- Returns the number of a job that has started before. $1 service, $2 code, $3 generation.
SELECT id FROM tidegate.job WHERE service = $1 AND code = $2 AND generation = $3;

-- name: missing_days
-- Days of $1 … $2 that have no partition of their own and no row in the default partition.
SELECT d::date AS day
FROM generate_series($1::date, $2::date, interval '1 day') AS d
WHERE to_regclass('tidegate.inbox_' || to_char(d, 'YYYYMMDD')) IS NULL
    AND NOT EXISTS (SELECT FROM tidegate.inbox_default AS i WHERE i.bucket = d::date)
ORDER BY 1;
