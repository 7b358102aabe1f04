-- A run over some dead letters of a job. token: grows whenever somebody takes the run over; whoever decides about a letter
-- renews lease_until under his token in the same transaction, so a runner that lost the run decides nothing any more.
-- stop_asked_by: the runner ends at the next batch. parked: events behind the letters that this run has handled.
CREATE TABLE tidegate.replay (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL REFERENCES tidegate.job,
    kind text NOT NULL CHECK (kind IN ('replay', 'discard')),
    state text NOT NULL CHECK (state IN ('waiting', 'running', 'stopped', 'done')),
    digest text NOT NULL,
    letters integer NOT NULL,
    parked bigint NOT NULL DEFAULT 0,
    failed_events bigint NOT NULL DEFAULT 0,
    is_forced boolean NOT NULL DEFAULT false,
    reason text NOT NULL,
    asked_by text NOT NULL,
    approved_by text,
    stop_asked_by text,
    token bigint NOT NULL DEFAULT 0,
    holder text,
    lease_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX replay_by_job ON tidegate.replay (job, id);

-- What became of a letter in a run; outcome NULL: it is that run's, and nobody else's, until it is decided. was: the state
-- that it goes back to where nothing is decided.
CREATE TABLE tidegate.replay_letter (
    replay bigint NOT NULL REFERENCES tidegate.replay,
    letter uuid NOT NULL REFERENCES tidegate.dead_letter ON DELETE CASCADE,
    was text NOT NULL,
    outcome text,
    decided_at timestamptz,
    PRIMARY KEY (replay, letter)
);
CREATE UNIQUE INDEX one_run_of_letter ON tidegate.replay_letter (letter) WHERE outcome IS NULL;

-- What somebody has decided about a record, by its place: every later read of the job goes by it. value: what an edited
-- record says; the letter keeps the original.
CREATE TABLE tidegate.correction (
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('discard', 'edit')),
    value bytea,
    letter uuid NOT NULL,
    reason text NOT NULL,
    made_by text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, topic, topic_id, partition, "offset")
);

-- decided_at: when a letter came to its end; decided ones are forgotten some time after it. has_payload: false where
-- nothing but its place could be kept, so that it is not taken for a record without a value.
ALTER TABLE tidegate.dead_letter
    ADD COLUMN decided_at timestamptz,
    ADD COLUMN has_payload boolean NOT NULL DEFAULT true;
CREATE INDEX dead_letter_by_decision ON tidegate.dead_letter (job, decided_at) WHERE decided_at IS NOT NULL;
