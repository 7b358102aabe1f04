-- Where the audit begins, after rows past their retention have left: number and hash of the last of them. 0: at its first row.
ALTER TABLE tidegate.audit_head
    ADD COLUMN cut_seq bigint NOT NULL DEFAULT 0,
    ADD COLUMN cut_hash bytea;

-- As before, but for the one function that takes rows away: it says so for as long as it runs.
CREATE OR REPLACE FUNCTION tidegate.refuse_audit_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('tidegate.forgets_audit', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the audit is only ever appended to, by tidegate.append_audit'
    USING ERRCODE = 'insufficient_privilege';
END
$$;

-- Removes up to `most` of the oldest rows, if all of them are older than `kept` by the database's clock, and returns how many.
-- Only ever from the beginning, so that the chain goes on at its cut; a row of the audit itself tells of it, with the cut's
-- number and hash, by which whoever verifies finds that nobody else has taken them. What only tells of earlier removals is
-- no reason for another. A chain that is broken keeps its evidence.
CREATE FUNCTION tidegate.forget_audit(actor text, origin text, target text, kept interval, most integer)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
SET tidegate.forgets_audit = 'on'
AS $$
DECLARE
    head tidegate.audit_head;
    gone bigint;
    up_to bigint;
    is_worth_it boolean;
    last_hash bytea;
    broken bigint;
BEGIN
    IF kept IS NULL OR kept < interval '365 days' OR most IS NULL OR most NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'the audit is kept for 365 days at least, not for %, and 1 to 10000 rows leave at once, not %', kept, most
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT h.* INTO STRICT head FROM tidegate.audit_head AS h FOR UPDATE;
    SELECT count(*), max(o.seq), bool_or(o.action <> 'audit:forget')
    INTO gone, up_to, is_worth_it
    FROM (
        SELECT a.seq, a.action, bool_and(a.at < now() - kept) OVER (ORDER BY a.seq) AS is_old
        FROM (SELECT b.seq, b.action, b.at FROM tidegate.audit AS b ORDER BY b.seq LIMIT most) AS a
    ) AS o
    WHERE o.is_old AND o.seq < head.seq;
    IF gone = 0 OR NOT is_worth_it THEN
        RETURN 0;
    END IF;
    SELECT min(l.seq)
    INTO broken
    FROM (
        SELECT
            a.seq,
            a.seq <> lag(a.seq, 1, head.cut_seq) OVER (ORDER BY a.seq) + 1
            OR a.hash <> sha256(a.previous_hash || convert_to(tidegate.audit_text(a), 'UTF8'))
            OR a.previous_hash <> lag(a.hash, 1, coalesce(head.cut_hash, sha256(convert_to(head.chain::text, 'UTF8'))))
                OVER (ORDER BY a.seq) AS is_broken
        FROM tidegate.audit AS a
        WHERE a.seq <= up_to + 1
    ) AS l
    WHERE l.is_broken;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'the audit is broken at row %, so nothing of it is forgotten: tidegate audit verify', broken;
    END IF;
    SELECT a.hash INTO STRICT last_hash FROM tidegate.audit AS a WHERE a.seq = up_to;
    DELETE FROM tidegate.audit AS a WHERE a.seq <= up_to;
    UPDATE tidegate.audit_head AS h SET cut_seq = up_to, cut_hash = last_hash;
    PERFORM tidegate.append_audit(
        actor, NULL, NULL, origin, 'audit:forget', target, '',
        json_build_object(
            'rows', gone, 'up_to', up_to, 'hash', encode(last_hash, 'hex'), 'retention_days', extract(epoch FROM kept) / 86400
        ),
        NULL, NULL, 'done', NULL
    );
    RETURN gone;
END
$$;
REVOKE ALL ON FUNCTION tidegate.forget_audit(text, text, text, interval, integer) FROM PUBLIC;
