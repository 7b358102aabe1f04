-- Looking at dead letters: each filter of `tidegate dlq list` is a column after job and state, and ends in the order of
-- the pages, so that a page costs as much as its rows, however many letters there are; read backwards, the newest first.
-- Of texts that come from records only the beginning is in an index: one of 4,000 bytes must not make a settle fail.
DROP INDEX tidegate.dead_letter_by_time;
CREATE INDEX dead_letter_by_time ON tidegate.dead_letter (job, state, last_failed_at, id);
-- Groups are counted from this index alone.
CREATE INDEX dead_letter_by_fingerprint
    ON tidegate.dead_letter (job, state, fingerprint, last_failed_at, id) INCLUDE (reason, first_failed_at);
CREATE INDEX dead_letter_by_reason ON tidegate.dead_letter (job, state, reason, last_failed_at, id);
CREATE INDEX dead_letter_by_type ON tidegate.dead_letter (job, state, LEFT(event_type, 200), last_failed_at, id);
CREATE INDEX dead_letter_by_tenant ON tidegate.dead_letter (job, state, LEFT(tenant, 200), last_failed_at, id);
CREATE INDEX dead_letter_by_brand ON tidegate.dead_letter (job, state, LEFT(brand, 200), last_failed_at, id);

-- A backfill meets an event again under other coordinates: the letter that has the event's claim is the one.
CREATE INDEX dead_letter_by_claim ON tidegate.dead_letter (claimed_id) WHERE claimed_id IS NOT NULL;
