-- schedule: in words, so that a changed one is told from a downtime; NULL: nobody has said it yet.
ALTER TABLE tidegate.job_clock ADD COLUMN schedule text;
