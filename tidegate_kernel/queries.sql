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
