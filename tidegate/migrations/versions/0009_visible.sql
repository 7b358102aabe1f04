-- The right to do something that one process at a time should do. A row stays when its lease has ended, so that the token
-- never starts again.
CREATE TABLE tidegate.lease (
    name text PRIMARY KEY,
    holder text NOT NULL,
    token bigint NOT NULL CHECK (token > 0),
    taken_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);  -- renewals stay heap-only updates

-- Up to where (exclusive) readers of a projection's store see what its job has settled, of the topic with this id.
-- rewound_from: it has stood at this offset before somebody moved the position back, and is not there again yet.
-- trouble: why nothing could be made visible since then.
CREATE TABLE tidegate.visible (
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id uuid NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    seen_at timestamptz NOT NULL DEFAULT now(),
    rewound_from bigint,
    rewound_at timestamptz,
    trouble text,
    trouble_since timestamptz,
    PRIMARY KEY (job, topic, partition)
) WITH (fillfactor = 50);

-- Its store was emptied then and has not been filled again: nothing of it is visible for sure.
ALTER TABLE tidegate.job ADD COLUMN emptied_at timestamptz;
