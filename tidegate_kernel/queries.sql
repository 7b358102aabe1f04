-- SQL of the kernel: the audit and tokens. Every query is PREPAREd by a test.

-- name: append_audit
-- Appends one row to the audit and returns its number and hash. $1 actor, $2 role, $3 token, $4 origin, $5 action,
-- $6 target, $7 reason, $8 parameters as JSON, $9 tenant, $10 brand, $11 outcome, $12 class of the error.
SELECT r.seq, r.hash
FROM tidegate.append_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS r

-- name: has_audit
-- Whether the audit has this row. $1 number, $2 hash.
SELECT EXISTS (SELECT FROM tidegate.audit AS a WHERE a.seq = $1 AND a.hash = $2)

-- name: token_state
-- Whether a token still opens anything. $1 id.
SELECT tidegate.token_state(t) AS state
FROM tidegate.access_token AS t
WHERE t.id = $1

-- name: token_by_digest
-- A token by the digest of its text. $1 digest.
SELECT
    t.id, t.name, t.role, t.tenants, t.brands, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by,
    tidegate.token_state(t) AS state
FROM tidegate.access_token AS t
WHERE t.sha256 = $1

-- name: standing_token
-- A token that was not revoked, by name or id, and nobody else changes it meanwhile. $1 name or id.
SELECT
    t.id, t.name, t.role, t.tenants, t.brands, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by,
    tidegate.token_state(t) AS state
FROM tidegate.access_token AS t
WHERE t.revoked_at IS NULL AND (t.name = $1 OR t.id::text = $1)
FOR UPDATE

-- name: lock_admin_tokens
-- The valid admin tokens without limits, in the order of their ids; nobody else revokes one meanwhile.
SELECT
    t.id, t.name, t.role, t.tenants, t.brands, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by,
    tidegate.token_state(t) AS state
FROM tidegate.access_token AS t
WHERE t.role = 'admin' AND t.tenants IS NULL AND t.brands IS NULL AND tidegate.token_state(t) = 'valid'
ORDER BY t.id
FOR UPDATE

-- name: list_tokens
-- All tokens, newest first.
SELECT
    t.id, t.name, t.role, t.tenants, t.brands, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by,
    tidegate.token_state(t) AS state
FROM tidegate.access_token AS t
ORDER BY t.created_at DESC, t.id

-- name: create_token
-- $1 name, $2 role, $3 tenants, $4 brands, $5 digest, $6 who makes it, $7 how long it lasts.
INSERT INTO tidegate.access_token (name, role, tenants, brands, sha256, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, now() + $7::interval)
RETURNING id

-- name: take_bootstrap_turn
-- One first token is made at a time. $1 key of the lock.
SELECT pg_advisory_xact_lock($1)

-- name: create_first_token
-- As create_token, only while no token was ever made; no row if there is one. Call after take_bootstrap_turn.
INSERT INTO tidegate.access_token (name, role, tenants, brands, sha256, created_by, expires_at)
SELECT $1, $2, $3, $4, $5, $6, now() + $7::interval
WHERE NOT EXISTS (SELECT FROM tidegate.access_token)
RETURNING id

-- name: revoke_token
-- $1 id, $2 who revokes it.
UPDATE tidegate.access_token
SET revoked_at = now(), revoked_by = $2
WHERE id = $1

-- name: list_audit
-- The newest rows that fit, newest first. NULL fits all. $1 actor, $2 action or its group ('dlq' for all of 'dlq:…'),
-- $3 target, $4 outcome, $5 since, $6 how many.
SELECT
    a.seq, a.at, a.actor, a.role, a.token, a.origin, a.action, a.target, a.reason, a.parameters, a.tenant, a.brand,
    a.outcome, a.error_class, a.database_identity, a.database_user, a.hash
FROM tidegate.audit AS a
WHERE ($1::text IS NULL OR a.actor = $1)
    AND ($2::text IS NULL OR a.action = $2 OR starts_with(a.action, $2 || ':'))
    AND ($3::text IS NULL OR a.target = $3)
    AND ($4::text IS NULL OR a.outcome = $4)
    AND ($5::timestamptz IS NULL OR a.at >= $5)
ORDER BY a.seq DESC
LIMIT $6

-- name: forget_audit
-- Some of the oldest rows leave, if they are past their time; a row tells of it. $1 actor, $2 origin, $3 target, $4 for how
-- long rows are kept, $5 how many at most.
SELECT tidegate.forget_audit($1, $2, $3, $4, $5)

-- name: broken_audit_row
-- The first row that does not follow the one before it, or is not what was hashed; the first of all follows the last that
-- has left by its retention. One walk along the primary key.
WITH linked AS (
    SELECT
        a.seq,
        lag(a.seq, 1, h.cut_seq) OVER (ORDER BY a.seq) AS seq_before,
        a.hash <> sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8')) AS is_edited,
        a.previous_hash <> lag(a.hash, 1, coalesce(h.cut_hash, sha256(convert_to(h.chain::text, 'UTF8'))))
            OVER (ORDER BY a.seq) AS is_detached
    FROM tidegate.audit AS a
    CROSS JOIN tidegate.audit_head AS h
)
SELECT l.seq, l.seq_before, l.is_edited, l.is_detached
FROM linked AS l
WHERE l.is_edited OR l.is_detached OR l.seq <> l.seq_before + 1
ORDER BY l.seq
LIMIT 1

-- name: audit_end
-- The chain's end as it was noted beside the table (NULL if somebody removed the note), the table's last row, which
-- database this is now; and up to where rows have left by their retention, with the row that tells of it.
SELECT
    h.chain, h.seq, h.hash, h.cut_seq, h.cut_hash,
    (
        SELECT max(a.seq) FROM tidegate.audit AS a
        WHERE a.action = 'audit:forget' AND a.outcome = 'done' AND a.parameters ->> 'up_to' = h.cut_seq::text
            AND a.parameters ->> 'hash' = encode(h.cut_hash, 'hex')
    ) AS cut_told_by,
    last_row.seq AS last_seq, last_row.hash AS last_hash, last_row.database_identity AS last_identity,
    (SELECT count(*) FROM tidegate.audit) AS rows,
    (SELECT count(*) FROM tidegate.outbox AS o WHERE o.kind = 'audit') AS unpublished,
    tidegate.database_identity() AS identity_now
FROM (VALUES (true)) AS always (is_only)
LEFT JOIN tidegate.audit_head AS h USING (is_only)
LEFT JOIN LATERAL (
    SELECT a.seq, a.hash, a.database_identity FROM tidegate.audit AS a ORDER BY a.seq DESC LIMIT 1
) AS last_row ON true

-- name: database_changes
-- Rows before which the database became another: restored, failed over, moved.
WITH neighbours AS (
    SELECT
        a.seq, a.at, a.database_identity,
        lag(a.database_identity) OVER (ORDER BY a.seq) AS identity_before
    FROM tidegate.audit AS a
)
SELECT n.seq, n.at, n.database_identity, n.identity_before
FROM neighbours AS n
WHERE n.identity_before <> n.database_identity
ORDER BY n.seq

-- name: audit_hashes
-- Number and hash of some rows. $1 numbers.
SELECT a.seq, a.hash FROM tidegate.audit AS a WHERE a.seq = ANY($1::bigint[])

-- name: audit_cut
-- Up to which row rows have left by their retention.
SELECT h.cut_seq FROM tidegate.audit_head AS h

-- name: audit_receipt
-- The hash of a row, and whether the row is still what was hashed. $1 number.
SELECT
    a.hash,
    a.hash <> sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8')) AS is_edited
FROM tidegate.audit AS a
WHERE a.seq = $1

-- name: hold_relays
-- Waits for whichever relay publishes, and keeps all of them from it until the transaction ends. $1 key of their lock.
SELECT pg_advisory_xact_lock($1)

-- name: take_lease
-- The lease belongs to a new holder if it has ended, or never was; its token is greater than any before. No row: it is
-- somebody's. $1 name, $2 holder, $3 seconds.
INSERT INTO tidegate.lease AS l (name, holder, token, expires_at)
VALUES ($1, $2, 1, now() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE
SET holder = EXCLUDED.holder, token = l.token + 1, taken_at = now(), expires_at = EXCLUDED.expires_at
WHERE l.expires_at <= now()
RETURNING token;

-- name: renew_lease
-- $1 name, $2 token, $3 seconds. No row: it has ended, or is another's.
UPDATE tidegate.lease
SET expires_at = now() + make_interval(secs => $3)
WHERE name = $1 AND token = $2 AND expires_at > now()
RETURNING token;

-- name: release_lease
-- $1 name, $2 token.
UPDATE tidegate.lease
SET expires_at = now()
WHERE name = $1 AND token = $2 AND expires_at > now()
RETURNING token;
