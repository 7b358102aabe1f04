-- erased_at, erased_by: when and by whom all that may be somebody's was removed from the letter. Its place stays, and what
-- has become of it.
ALTER TABLE tidegate.dead_letter
    ADD COLUMN erased_at timestamptz,
    ADD COLUMN erased_by text;

-- A letter that leaves takes its lines of runs with it.
CREATE INDEX replay_letter_by_letter ON tidegate.replay_letter (letter);

-- Removes up to `most` letters of a service's jobs that were decided longer ago than `kept`, of each job the oldest first,
-- and tells how many of each. What nobody has decided about stays for ever, and so does a letter whose record was edited:
-- by the letter whoever has to erase it finds what the correction says; and one that was erased: while it is there, no
-- record that Kafka still has fills it again. Nobody is waited for: a letter that is in use stays until the next time.
CREATE FUNCTION tidegate.drop_decided_letters(of_service text, kept interval, most integer)
RETURNS TABLE (code text, dropped bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
BEGIN
    IF kept IS NULL OR kept < interval '1 day' OR most IS NULL OR most NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'letters are kept for a day at least, not for %, and 1 to 10000 dropped at once, not %', kept, most
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    WITH due AS (
        SELECT d.id
        FROM tidegate.job AS j
        CROSS JOIN LATERAL (
            SELECT l.id
            FROM tidegate.dead_letter AS l
            WHERE l.job = j.id
                AND l.decided_at < now() - kept
                AND l.state IN ('resolved', 'already_processed', 'superseded', 'discarded')
                AND l.erased_at IS NULL
                AND NOT EXISTS (SELECT FROM tidegate.blocking_letter AS b WHERE b.letter = l.id)
                AND NOT EXISTS (SELECT FROM tidegate.replay_letter AS r WHERE r.letter = l.id AND r.outcome IS NULL)
                AND NOT EXISTS (
                    SELECT FROM tidegate.correction AS c
                    WHERE c.job = l.job AND c.topic = l.topic AND c.topic_id = l.topic_id
                        AND c.partition = l.partition AND c."offset" = l."offset" AND c.kind = 'edit'
                )
            ORDER BY l.decided_at
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ) AS d
        WHERE j.service = of_service
        LIMIT most
    ),
    gone AS (
        DELETE FROM tidegate.dead_letter AS l USING due AS d WHERE l.id = d.id RETURNING l.job
    )
    SELECT j.code, count(*) FROM gone AS g JOIN tidegate.job AS j ON j.id = g.job GROUP BY j.code;
END
$$;

REVOKE ALL ON FUNCTION tidegate.drop_decided_letters(text, interval, integer) FROM PUBLIC;
