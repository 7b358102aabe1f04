-- A partition that was added to a topic is not read before the older partitions named here have passed these offsets,
-- the ends of their logs when it was found: earlier records of its keys stand there. NULL once it was begun.
ALTER TABLE tidegate.position
    ADD COLUMN waits_for integer[],
    ADD COLUMN waits_until bigint[];
