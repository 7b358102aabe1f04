-- Stable batches: a range of records that is applied as one, written down before it is applied. It holds while the
-- position stands at its first offset. What was left out of it is kept with it: a later try must leave out the same.
ALTER TABLE tidegate.position
    ADD COLUMN range_first bigint,
    ADD COLUMN range_end bigint,
    ADD COLUMN range_failed bigint[],
    ADD COLUMN range_repeats bigint[];
