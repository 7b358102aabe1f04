-- What is known of an item that failed. letter: the id of the dead letter that it is, of a quarantined one; it stays when the
-- item is done after all. place: its key in the query's order, page_after: the key behind which its page was asked for
-- (NULL: from the beginning), scheduled_at: what its run was made for; by these it is found again. replays: how often
-- somebody asked for it again; replay: the run that is to do it, until it has. discarded: somebody decided that nobody will.
ALTER TABLE tidegate.job_item
    ADD COLUMN letter uuid,
    ADD COLUMN place text,
    ADD COLUMN page_after text,
    ADD COLUMN scheduled_at timestamptz,
    ADD COLUMN correlation_id uuid,
    ADD COLUMN reason text,
    ADD COLUMN handler text,
    ADD COLUMN stack text,
    ADD COLUMN fingerprint text,
    ADD COLUMN attempts integer,
    ADD COLUMN occurrences integer,
    ADD COLUMN first_failed_at timestamptz,
    ADD COLUMN replays integer,
    ADD COLUMN replay bigint,
    DROP CONSTRAINT job_item_outcome_check,
    ADD CONSTRAINT job_item_outcome_check CHECK (outcome IN ('done', 'failed', 'quarantined', 'discarded'));
CREATE INDEX job_item_replayed ON tidegate.job_item (replay) WHERE replay IS NOT NULL;

-- A run that does items again that were dead letters, and nothing else: it moves no checkpoint, and no occasion waits for it.
ALTER TABLE tidegate.job_run ADD COLUMN is_replay boolean NOT NULL DEFAULT false;

-- Records that Kafka will never take are few, and are counted beside a backlog that may be long.
CREATE INDEX outbox_set_aside ON tidegate.outbox (id) WHERE failed_at IS NOT NULL;

-- What nobody asks for any more leaves with its occasion, also what was discarded.
DROP INDEX tidegate.job_item_by_age;
CREATE INDEX job_item_by_age ON tidegate.job_item (job, decided_at) WHERE outcome IN ('done', 'discarded');
