-- SQL of the kernel: the audit. Every query is PREPAREd by a test.

-- name: append_audit
-- Appends one row to the audit and returns its number and hash. $1 actor, $2 role, $3 token, $4 origin, $5 action,
-- $6 target, $7 reason, $8 parameters as JSON, $9 tenant, $10 brand, $11 outcome, $12 class of the error.
SELECT r.seq, r.hash
FROM tidegate.append_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS r

-- name: has_audit
-- Whether the audit has this row. $1 number, $2 hash.
SELECT EXISTS (SELECT FROM tidegate.audit AS a WHERE a.seq = $1 AND a.hash = $2)

-- name: token_standing
-- Whether a token still holds. $1 id.
SELECT t.revoked_at IS NOT NULL AS is_revoked, coalesce(t.expires_at <= now(), false) AS is_expired
FROM tidegate.access_token AS t
WHERE t.id = $1
