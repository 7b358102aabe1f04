-- The day of which the letter's claim is at the latest, by the clock that claims have their days from. last_failed_at is by
-- the worker's clock: with one more than a day behind, the letter's own claim looked like another's, and a replay closed it
-- as already processed. NULL: of before there was this column.
ALTER TABLE tidegate.dead_letter ADD COLUMN claimed_on date;
ALTER TABLE tidegate.dead_letter ALTER COLUMN claimed_on SET DEFAULT tidegate.today();
