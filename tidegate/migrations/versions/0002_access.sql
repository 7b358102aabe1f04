-- Who may do what. The text of a token is nowhere, only its digest. tenants, brands: NULL means all of them.
CREATE TABLE tidegate.access_token (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    tenants text[] CHECK (cardinality(tenants) > 0),
    brands text[] CHECK (cardinality(brands) > 0),
    sha256 bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text
);
CREATE UNIQUE INDEX one_standing_token_a_name ON tidegate.access_token (name) WHERE revoked_at IS NULL;

-- Whether a token still opens anything, by the database's clock.
CREATE FUNCTION tidegate.token_state(t tidegate.access_token) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN t.revoked_at IS NOT NULL THEN 'revoked'
    WHEN t.expires_at <= now() THEN 'expired'
    ELSE 'valid'
END;

-- What was done by hand, or tried. Each row's hash covers the row and the hash before it, so that whoever edits, removes
-- or inserts one breaks the chain. parameters is json, not jsonb: its text must stay what was hashed.
-- database_identity: system identifier, timeline and database oid; a restore or a move shows as a change between rows.
CREATE TABLE tidegate.audit (
    seq bigint PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    role text,
    token uuid,
    origin text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    parameters json NOT NULL,
    tenant text,
    brand text,
    outcome text NOT NULL CHECK (outcome IN ('done', 'denied', 'failed')),
    error_class text,
    database_identity text NOT NULL,
    database_user text NOT NULL,
    previous_hash bytea NOT NULL,
    hash bytea NOT NULL
);

-- The end of the chain. chain tells it from the chains of other databases that publish to the same Kafka.
CREATE TABLE tidegate.audit_head (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    chain uuid NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL
);
INSERT INTO tidegate.audit_head (chain, seq, hash)
SELECT c.chain, 0, sha256(convert_to(c.chain::text, 'UTF8'))
FROM gen_random_uuid() AS c (chain);

-- One column in the text below: its length in bytes, then itself, so that no two rows have one text. NULL is '-'.
CREATE FUNCTION tidegate.audit_part(part text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN coalesce(octet_length(part)::text || ':' || part, '-');

-- What is hashed of a row: every column but the hashes, in one order, times as microseconds since 1970. STABLE and
-- without settings of its own, so that the planner writes it into the query that verifies.
CREATE FUNCTION tidegate.audit_text(a tidegate.audit) RETURNS text
LANGUAGE sql STABLE
RETURN tidegate.audit_part(a.seq::text)
    || tidegate.audit_part(round(extract(epoch FROM a.at) * 1000000)::text)
    || tidegate.audit_part(a.actor)
    || tidegate.audit_part(a.role)
    || tidegate.audit_part(a.token::text)
    || tidegate.audit_part(a.origin)
    || tidegate.audit_part(a.action)
    || tidegate.audit_part(a.target)
    || tidegate.audit_part(a.reason)
    || tidegate.audit_part(a.parameters::text)
    || tidegate.audit_part(a.tenant)
    || tidegate.audit_part(a.brand)
    || tidegate.audit_part(a.outcome)
    || tidegate.audit_part(a.error_class)
    || tidegate.audit_part(a.database_identity)
    || tidegate.audit_part(a.database_user);

CREATE FUNCTION tidegate.database_identity() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN concat_ws(
        ':',
        (SELECT s.system_identifier FROM pg_control_system() AS s),
        -- The first eight digits of a log file's name are the timeline; the control file learns it a little later.
        substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
        (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    );
EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
    RETURN 'unknown';  -- a hosted server may keep these to itself: the chain holds without
END
$$;

-- The only way into the audit: a row is appended in the caller's transaction, and published with it through the outbox.
-- It holds the chain's end until that transaction ends: call it last. Whoever froze while holding it must not stop all
-- others without a word.
CREATE FUNCTION tidegate.append_audit(
    actor text, role text, token uuid, origin text, action text, target text, reason text, parameters json,
    tenant text, brand text, outcome text, error_class text,
    OUT seq bigint, OUT hash bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET bytea_output = 'hex'
SET lock_timeout = '20s'
AS $$
DECLARE
    chain uuid;
    fresh tidegate.audit;
BEGIN
    SELECT h.chain, h.seq + 1, h.hash
    INTO STRICT chain, fresh.seq, fresh.previous_hash
    FROM tidegate.audit_head AS h
    FOR UPDATE;
    fresh.at := clock_timestamp();
    fresh.actor := actor;
    fresh.role := role;
    fresh.token := token;
    fresh.origin := origin;
    fresh.action := action;
    fresh.target := target;
    fresh.reason := reason;
    fresh.parameters := parameters;
    fresh.tenant := tenant;
    fresh.brand := brand;
    fresh.outcome := outcome;
    fresh.error_class := error_class;
    fresh.database_identity := tidegate.database_identity();
    fresh.database_user := session_user;
    fresh.hash := sha256(fresh.previous_hash || convert_to(tidegate.audit_text(fresh), 'UTF8'));
    INSERT INTO tidegate.audit SELECT fresh.*;
    UPDATE tidegate.audit_head AS h SET seq = fresh.seq, hash = fresh.hash;
    INSERT INTO tidegate.outbox (kind, topic, key, value, header_names, header_values)
    VALUES (
        'audit', 'tidegate.audit', convert_to(chain::text, 'UTF8'),
        convert_to(
            json_build_object(
                'chain', chain, 'seq', fresh.seq, 'hash', encode(fresh.hash, 'hex'), 'row', fresh
            )::text,
            'UTF8'
        ),
        ARRAY[convert_to('content-type', 'UTF8')], ARRAY[convert_to('application/json', 'UTF8')]
    );
    seq := fresh.seq;
    hash := fresh.hash;
END
$$;
REVOKE ALL ON FUNCTION tidegate.append_audit(
    text, text, uuid, text, text, text, text, json, text, text, text, text
) FROM PUBLIC;

-- Privileges keep other roles from it; this keeps the owner from doing it by mistake.
CREATE FUNCTION tidegate.refuse_audit_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the audit is only ever appended to, by tidegate.append_audit'
    USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tidegate.audit
FOR EACH STATEMENT EXECUTE FUNCTION tidegate.refuse_audit_change();
-- Also where a session plays a replica.
ALTER TABLE tidegate.audit ENABLE ALWAYS TRIGGER audit_is_append_only;

ALTER TABLE tidegate.outbox
    DROP CONSTRAINT outbox_kind_check,
    ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('event', 'dead_letter', 'audit'));
