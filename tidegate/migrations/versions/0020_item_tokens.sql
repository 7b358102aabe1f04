-- Under which token of its run's lease an item was done or failed: its result says whose it is, as checkpoint and run do.
-- NULL: of before there was this column.
ALTER TABLE tidegate.job_item ADD COLUMN token bigint;
