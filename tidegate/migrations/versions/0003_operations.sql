-- What somebody wants of a job: a pause by an operator, or the stop that a flood of dead letters called for. It holds
-- until it is ended or `until` has passed. topic, partition, tenant: NULL means all of them. service_wide: decided for all
-- jobs of the service at once, so that ending that leaves what was decided for one job.
CREATE TABLE tidegate.intent (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('pause', 'flood')),
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text,
    partition integer,
    tenant text CHECK (tenant IS NULL OR partition IS NULL),
    service_wide boolean NOT NULL DEFAULT false,
    reason text NOT NULL,
    actor text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    ended_at timestamptz,
    ended_by text
);
CREATE INDEX intent_standing ON tidegate.intent (job) WHERE ended_at IS NULL;

-- Up to which offset (exclusive) dead letters of a released flood are not counted again.
CREATE TABLE tidegate.flood_allowance (
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    until_offset bigint NOT NULL,
    PRIMARY KEY (job, topic, topic_id, partition)
);

-- What the owner of a partition last said of it: why it moves or not (state, detail), and since when. Renewed every ten
-- seconds; an old `seen_at` means that nobody owns it. epoch: that of the position, so that a stale owner is not heard.
CREATE TABLE tidegate.presence (
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    partition integer NOT NULL,
    owner text NOT NULL,
    epoch bigint NOT NULL,
    state text NOT NULL,
    detail text NOT NULL DEFAULT '',
    since timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (job, topic, partition)
) WITH (fillfactor = 50);

-- Offsets that a job passed without reading them, by whose decision. G1 rests on it.
CREATE TABLE tidegate.skipped_range (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= first_offset),
    cause text NOT NULL CHECK (cause IN ('gap', 'skip', 'set', 'adopt')),
    actor text NOT NULL,
    reason text NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX skipped_range_by_place ON tidegate.skipped_range (job, topic, partition, first_offset);

-- taken_offset: where the present owner began. deaths: owners in a row that ended without release and without progress.
-- attempts: how often the record at attempt_offset was begun alone, written before it was handed over. grouped_until:
-- up to where (exclusive) records of a suspect partition were begun together.
ALTER TABLE tidegate.position
    ADD COLUMN taken_offset bigint,
    ADD COLUMN deaths integer NOT NULL DEFAULT 0,
    ADD COLUMN attempt_offset bigint,
    ADD COLUMN attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN grouped_until bigint;

-- Letters are found by event id and by key. Hashed: a key may be longer than any other kind of index takes.
CREATE INDEX dead_letter_by_event ON tidegate.dead_letter USING hash (event_id);
CREATE INDEX dead_letter_by_key ON tidegate.dead_letter USING hash (key);
