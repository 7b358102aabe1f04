-- Upkeep of the inbox: days ahead, days past the horizon. Workers may be unable to make or drop tables: what needs that
-- stands in functions that run as their owner and take nothing but a day, or the name of a part and a number.

-- horizon_days: how long claims of the job are kept after they were made; NULL: for ever.
-- claims_since: claims made before this day may be forgotten; NULL: none was.
ALTER TABLE tidegate.job
    ADD COLUMN horizon_days integer CHECK (horizon_days > 0),
    ADD COLUMN claims_since date;

-- Who keeps the inbox now, and how it goes. failing_since: since when no round came to its end.
CREATE TABLE tidegate.inbox_upkeep (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    holder text,
    lease_until timestamptz,
    succeeded_at timestamptz,
    failing_since timestamptz,
    error text
);
INSERT INTO tidegate.inbox_upkeep DEFAULT VALUES;

-- How far the sweep of a part that is never dropped has come. oldest: the oldest claim that the last sweep left.
CREATE TABLE tidegate.inbox_sweep (
    part text PRIMARY KEY CHECK (part IN ('default', 'constant')),
    next_page bigint NOT NULL DEFAULT 0,
    oldest_so_far date,
    oldest date,
    swept_on date
);
INSERT INTO tidegate.inbox_sweep (part) VALUES ('default'), ('constant');

-- Days for which a claim arrived while it was being decided whether they are still needed.
CREATE TABLE tidegate.inbox_late (day date NOT NULL);

-- The database's own clock: one worker with a wrong date must not forget claims.
CREATE FUNCTION tidegate.today() RETURNS date
LANGUAGE sql STABLE
RETURN (now() AT TIME ZONE 'UTC')::date;

-- From which day on days have partitions of their own. As far back as claims are remembered, so that a job that starts
-- on a topic with a history does not fill the default partition; a month at the most.
CREATE FUNCTION tidegate.first_inbox_day() RETURNS date
LANGUAGE sql STABLE
RETURN tidegate.today() - (
    SELECT greatest(2, max(least(31, coalesce(j.horizon_days, 31)))) FROM tidegate.job AS j
);

CREATE FUNCTION tidegate.inbox_leaf(day date) RETURNS regclass
LANGUAGE sql STABLE
RETURN to_regclass('tidegate.inbox_' || to_char(day, 'YYYYMMDD'));

-- True: the day has a partition of its own from now on. False: it had one, or claims of that day already stand in the
-- default partition, where they stay: moving rows would make claims fail.
CREATE FUNCTION tidegate.attach_inbox_day(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    name text := 'inbox_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF day IS NULL OR day < tidegate.first_inbox_day() OR day > tidegate.today() + 7 THEN
        RAISE EXCEPTION 'no partition of its own for day %', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF tidegate.inbox_leaf(day) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE tidegate.%I (LIKE tidegate.inbox INCLUDING ALL)', name);
    EXECUTE format(
        'ALTER TABLE tidegate.inbox ATTACH PARTITION tidegate.%I FOR VALUES FROM (%L) TO (%L)', name, day, day + 1
    );
    RETURN true;
-- The first three: what the later of two CREATE TABLE of one name is told, of the table, of its row type, of the catalog.
EXCEPTION WHEN duplicate_table OR duplicate_object OR unique_violation OR check_violation THEN
    RETURN false;
END
$$;

CREATE FUNCTION tidegate.note_late_claim() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM tidegate.inbox_late AS l WHERE l.day = NEW.bucket) THEN
        INSERT INTO tidegate.inbox_late (day) VALUES (NEW.bucket);
    END IF;
    RETURN NULL;
END
$$;

-- True: from the end of this transaction on, a claim that still arrives for the day is noted, and every earlier one is
-- visible. False: the day is not to be emptied now. The trigger stays until the partition is dropped: it only costs
-- what comes later than any horizon.
CREATE FUNCTION tidegate.watch_inbox_day(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    leaf regclass := tidegate.inbox_leaf(day);
    is_used boolean;
    is_kept boolean;
BEGIN
    IF leaf IS NULL OR NOT pg_try_advisory_xact_lock(hashtext('tidegate.inbox_upkeep')) THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', leaf) INTO is_used;
    IF NOT is_used OR (SELECT coalesce(day >= tidegate.today() - min(j.horizon_days), true) FROM tidegate.job AS j) THEN
        RETURN false;
    END IF;
    -- A look at the index for each job: most days that stay are known by it.
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM tidegate.job AS j WHERE j.horizon_days IS NULL '
        'AND EXISTS (SELECT FROM %s AS i WHERE i.job = j.id))', leaf
    ) INTO is_kept;
    IF is_kept THEN
        RETURN false;
    END IF;
    -- Waits for whoever has claimed here and not committed yet.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', leaf);
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER note_late_claim AFTER INSERT ON %s '
        'FOR EACH ROW EXECUTE FUNCTION tidegate.note_late_claim()', leaf
    );
    DELETE FROM tidegate.inbox_late AS l WHERE l.day = watch_inbox_day.day;
    RETURN true;
END
$$;

-- True: the day held no claim that a job still has to remember, and now holds none at all. Only claims of that day are
-- locked out, and only while its file is replaced; the search before runs beside them. Needs `watch_inbox_day` in an
-- earlier transaction.
CREATE FUNCTION tidegate.empty_inbox_day(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    leaf regclass := tidegate.inbox_leaf(day);
    today date := tidegate.today();
    is_needed boolean;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tidegate.inbox_upkeep'))
        OR NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = leaf AND t.tgname = 'note_late_claim')
    THEN
        RETURN false;
    END IF;
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM %s AS i LEFT JOIN tidegate.job AS j ON j.id = i.job '
        'WHERE j.horizon_days IS NULL OR i.claimed_on >= $1 - j.horizon_days)', leaf
    ) INTO is_needed USING today;
    IF is_needed THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', leaf);
    IF EXISTS (SELECT FROM tidegate.inbox_late AS l WHERE l.day = empty_inbox_day.day) THEN
        RETURN false;
    END IF;
    EXECUTE format(
        'UPDATE tidegate.job AS j SET claims_since = greatest(j.claims_since, $1 - j.horizon_days) '
        'WHERE EXISTS (SELECT FROM %s AS i WHERE i.job = j.id)', leaf
    ) USING today;
    EXECUTE format('TRUNCATE TABLE %s', leaf);
    RETURN true;
END
$$;

-- True: the day's empty partition is gone. All claims wait while this waits for those that are open, so it gives up
-- soon: an empty partition costs nothing.
CREATE FUNCTION tidegate.drop_inbox_day(day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    leaf regclass := tidegate.inbox_leaf(day);
    is_used boolean;
BEGIN
    IF leaf IS NULL OR day >= tidegate.first_inbox_day() THEN
        RETURN false;
    END IF;
    FOR attempt IN 1 .. 2 LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', leaf) INTO is_used;
        IF is_used THEN
            RETURN false;
        END IF;
        -- Claims lock the parent first, and so does this. What came before the lock shows in the second look.
        LOCK TABLE ONLY tidegate.inbox IN ACCESS EXCLUSIVE MODE;
    END LOOP;
    EXECUTE format('DROP TABLE %s', leaf);
    DELETE FROM tidegate.inbox_late AS l WHERE l.day = drop_inbox_day.day;
    RETURN true;
END
$$;

-- Removes the claims past their job's horizon from the next pages of a part that is never dropped, at most one sweep a
-- day. However few of them there are, a call reads this many pages and no more: no index has the day of the claim, which
-- every single claim would pay for. Claims cannot deadlock with it: they insert, and what they have not committed yet
-- it does not see.
CREATE FUNCTION tidegate.sweep_inbox(part text, pages integer, OUT removed bigint, OUT is_finished boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    today date := tidegate.today();
    sweep tidegate.inbox_sweep;
    leaf regclass;
    page_range tid[];
    jobs smallint[];
    kept_since date;
BEGIN
    IF pages IS NULL OR pages NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'a sweep takes 1 to 1024 pages, not %', pages USING ERRCODE = 'invalid_parameter_value';
    END IF;
    removed := 0;
    is_finished := true;
    SELECT s.* INTO sweep FROM tidegate.inbox_sweep AS s WHERE s.part = sweep_inbox.part FOR UPDATE SKIP LOCKED;
    IF sweep.part IS NULL OR sweep.swept_on >= today THEN
        RETURN;
    END IF;
    leaf := ('tidegate.inbox_' || sweep.part)::regclass;
    page_range := ARRAY[format('(%s,0)', sweep.next_page), format('(%s,0)', sweep.next_page + pages)]::tid[];
    EXECUTE format(
        'WITH gone AS (DELETE FROM %s AS i USING tidegate.job AS j WHERE j.id = i.job '
        'AND i.claimed_on < $1 - j.horizon_days AND i.ctid >= $2 AND i.ctid < $3 RETURNING i.job) '
        'SELECT count(*), array_agg(DISTINCT g.job) FROM gone AS g', leaf
    ) INTO removed, jobs USING today, page_range[1], page_range[2];
    UPDATE tidegate.job AS j SET claims_since = greatest(j.claims_since, today - j.horizon_days) WHERE j.id = ANY (jobs);
    EXECUTE format('SELECT min(i.claimed_on) FROM %s AS i WHERE i.ctid >= $1 AND i.ctid < $2', leaf)
    INTO kept_since USING page_range[1], page_range[2];
    kept_since := least(sweep.oldest_so_far, kept_since);
    is_finished := (sweep.next_page + pages) * current_setting('block_size')::bigint >= pg_relation_size(leaf);
    IF is_finished THEN
        UPDATE tidegate.inbox_sweep AS s
        SET next_page = 0, oldest_so_far = NULL, oldest = kept_since, swept_on = today
        WHERE s.part = sweep.part;
    ELSE
        UPDATE tidegate.inbox_sweep AS s
        SET next_page = sweep.next_page + pages, oldest_so_far = kept_since
        WHERE s.part = sweep.part;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION
    tidegate.attach_inbox_day(date), tidegate.watch_inbox_day(date), tidegate.empty_inbox_day(date),
    tidegate.drop_inbox_day(date), tidegate.sweep_inbox(text, integer), tidegate.note_late_claim()
FROM PUBLIC;
