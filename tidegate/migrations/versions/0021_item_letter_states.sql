-- Letters of items are looked at beside those of records, by the same states. last_failed_at: NULL of before there was this
-- column, decided_at says it then. is_quarantined: a letter that has failed in as many replays as there may be; only a forced
-- one takes it again. erased_at, erased_by: when and by whom all that may be somebody's was removed; the key is a digest then.
ALTER TABLE tidegate.job_item
    ADD COLUMN last_failed_at timestamptz,
    ADD COLUMN is_quarantined boolean NOT NULL DEFAULT false,
    ADD COLUMN erased_at timestamptz,
    ADD COLUMN erased_by text;

-- The state of an item's letter, in the words of dead_letter.state.
CREATE FUNCTION tidegate.item_letter_state(outcome text, replay bigint, is_quarantined boolean) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN outcome = 'done' THEN 'resolved'
        WHEN outcome = 'discarded' THEN 'discarded'
        WHEN replay IS NOT NULL THEN 'replaying'
        WHEN is_quarantined THEN 'quarantined'
        ELSE 'dead'
    END
$$;

-- The list walks it job by job and state by state, the newest failure first; the counts are read from it.
CREATE INDEX job_item_letters ON tidegate.job_item (
    job, tidegate.item_letter_state(outcome, replay, is_quarantined), (coalesce(last_failed_at, decided_at)) DESC,
    letter DESC
) WHERE letter IS NOT NULL;
CREATE INDEX job_item_by_letter ON tidegate.job_item (letter) WHERE letter IS NOT NULL;
