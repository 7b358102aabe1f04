-- SQL of freshness. Every query is PREPAREd by a test.

-- name: settled_positions
-- Where the job's live consumer stands (at the beginning, as long as its store was emptied and is being filled again), and
-- when its store was last written to by a backfill (NULL: by none). $1 job.
SELECT
    p.topic, p.partition, p.topic_id,
    CASE WHEN j.emptied_at IS NULL THEN p.next_offset ELSE 0 END AS next_offset,
    (SELECT max(b.moved_at) FROM tidegate.position AS b WHERE b.job = $1 AND b.run <> 0) AS backfilled_at
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.job = $1 AND p.run = 0
ORDER BY p.topic, p.partition;

-- name: visible_offsets
-- Up to where readers see the job's partitions, and for how long that has been known. $1 job.
SELECT
    v.topic, v.partition, v.topic_id, v.next_offset, v.rewound_from, v.trouble,
    greatest(extract(epoch FROM now() - v.seen_at), 0)::float8 AS seen_seconds,
    greatest(extract(epoch FROM now() - v.trouble_since), 0)::float8 AS trouble_seconds
FROM tidegate.visible AS v
WHERE v.job = $1
ORDER BY v.topic, v.partition;

-- name: show_visible
-- Readers see the job up to these offsets now. Positions only grow, but by hand: one that is lower than what was shown was
-- moved back, or counts another topic's records. No row: the lease is not ours any more. $1 lease, $2 token, $3 job,
-- $4 topics, $5 partitions, $6 topic ids, $7 next offsets.
WITH held AS (
    SELECT FROM tidegate.lease AS l
    WHERE l.name = $1 AND l.token = $2 AND l.expires_at > now()
    FOR SHARE
),
-- Locked, and so as it is now: what was read before somebody emptied the store must not be told after that.
full_store AS (
    SELECT j.emptied_at IS NULL AS is_full FROM tidegate.job AS j WHERE j.id = $3 FOR SHARE
)
INSERT INTO tidegate.visible AS v (job, topic, partition, topic_id, next_offset)
SELECT $3, p.topic, p.partition, p.topic_id, CASE WHEN f.is_full THEN p.next_offset ELSE 0 END
FROM unnest($4::text[], $5::int[], $6::uuid[], $7::bigint[]) AS p (topic, partition, topic_id, next_offset)
CROSS JOIN full_store AS f
WHERE EXISTS (SELECT FROM held)
ON CONFLICT (job, topic, partition) DO UPDATE
SET topic_id = EXCLUDED.topic_id, next_offset = EXCLUDED.next_offset, seen_at = now(), trouble = NULL,
    trouble_since = NULL,
    rewound_from = CASE
        WHEN v.topic_id <> EXCLUDED.topic_id OR EXCLUDED.next_offset >= greatest(v.rewound_from, v.next_offset) THEN NULL
        ELSE greatest(v.rewound_from, v.next_offset)
    END,
    rewound_at = CASE
        WHEN v.topic_id <> EXCLUDED.topic_id OR EXCLUDED.next_offset < v.next_offset THEN now()
        WHEN EXCLUDED.next_offset >= greatest(v.rewound_from, v.next_offset) THEN NULL
        ELSE v.rewound_at
    END
RETURNING v.partition;

-- name: note_unseen
-- Why nothing of the job can be made visible, since when. What it was before stays visible. $1 lease, $2 token, $3 job,
-- $4 why.
WITH held AS (
    SELECT FROM tidegate.lease AS l
    WHERE l.name = $1 AND l.token = $2 AND l.expires_at > now()
    FOR SHARE
)
INSERT INTO tidegate.visible AS v (job, topic, partition, topic_id, next_offset, trouble, trouble_since)
SELECT p.job, p.topic, p.partition, p.topic_id, 0, $4, now()
FROM tidegate.position AS p
WHERE p.job = $3 AND p.run = 0 AND EXISTS (SELECT FROM held)
ON CONFLICT (job, topic, partition) DO UPDATE
SET trouble = EXCLUDED.trouble, trouble_since = coalesce(v.trouble_since, EXCLUDED.trouble_since);

-- name: clear_unseen
-- It can again. $1 lease, $2 token, $3 job.
UPDATE tidegate.visible AS v
SET trouble = NULL, trouble_since = NULL
WHERE v.job = $3 AND v.trouble IS NOT NULL
    AND EXISTS (SELECT FROM tidegate.lease AS l WHERE l.name = $1 AND l.token = $2 AND l.expires_at > now());
