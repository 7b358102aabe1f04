-- Everything of Tidegate's own lives in schema `tidegate`; the user's tables stay where they are.
CREATE SCHEMA IF NOT EXISTS tidegate;

-- A job of a service by number. A rebuild is a generation of its own, with its own positions and claims.
CREATE TABLE tidegate.job (
    id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service text NOT NULL,
    code text NOT NULL,
    generation integer NOT NULL DEFAULT 1,
    claim_rule text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (service, code, generation)
);

-- Next offset of a job in a partition: our own truth. run 0 is the live consumer, others are backfills.
CREATE TABLE tidegate.position (
    job smallint NOT NULL REFERENCES tidegate.job,
    run bigint NOT NULL DEFAULT 0,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    end_offset bigint,
    epoch bigint NOT NULL DEFAULT 0,
    topic_id uuid NOT NULL,
    owner text,
    moved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, run, topic, partition)
) WITH (fillfactor = 50);  -- room on the page: an advance touches no index and stays a heap-only update

-- Event ids a job has taken. Partitioned by a day that the event itself fixes; never by arrival.
CREATE TABLE tidegate.inbox (
    job smallint NOT NULL,
    bucket date NOT NULL,
    id uuid NOT NULL,
    claimed_on date NOT NULL DEFAULT CURRENT_DATE,
    PRIMARY KEY (job, bucket, id)
) PARTITION BY RANGE (bucket);
CREATE TABLE tidegate.inbox_default PARTITION OF tidegate.inbox DEFAULT;
-- Ids that carry no day share the bucket 1970-01-01.
CREATE TABLE tidegate.inbox_constant PARTITION OF tidegate.inbox FOR VALUES FROM ('1970-01-01') TO ('1970-01-02');

-- A record that a job could not handle, kept whole. Unique by where it stood, so a re-read adds an occurrence.
CREATE TABLE tidegate.dead_letter (
    id uuid PRIMARY KEY,
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    recorded_at timestamptz,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL DEFAULT '{}',
    header_values bytea[] NOT NULL DEFAULT '{}',
    event_id text,
    event_type text,
    claimed_bucket date,
    claimed_id uuid,
    tenant text NOT NULL DEFAULT '',
    brand text NOT NULL DEFAULT '',
    correlation_id text,
    traceparent text,
    reason text NOT NULL,
    error_class text NOT NULL,
    error_message text NOT NULL,
    stack text NOT NULL DEFAULT '',
    fingerprint text NOT NULL,
    handler text NOT NULL DEFAULT '',
    service_version text NOT NULL DEFAULT '',
    attempts integer NOT NULL,
    state text NOT NULL DEFAULT 'dead',
    occurrences integer NOT NULL DEFAULT 1,
    replay_count integer NOT NULL DEFAULT 0,
    backfill boolean NOT NULL DEFAULT false,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (job, topic, topic_id, partition, "offset")
);
CREATE INDEX dead_letter_by_time ON tidegate.dead_letter (job, state, last_failed_at DESC, id);

-- Records to be produced to Kafka, written in the transaction that decided them.
CREATE TABLE tidegate.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('event', 'dead_letter')),
    topic text NOT NULL,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL DEFAULT '{}',
    header_values bytea[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Set when Kafka will never take the record (too large for its topic): it waits for a person, others go on.
    failed_at timestamptz,
    error text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);  -- a queue: every row dies soon
CREATE INDEX outbox_by_topic ON tidegate.outbox (topic, id) WHERE failed_at IS NULL;

-- Named offsets per partition.
CREATE TABLE tidegate.checkpoint (
    name text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id uuid NOT NULL,
    next_offset bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, topic, partition)
);

-- One re-read of a range of offsets by a job. Its progress stands in tidegate.position under run = id.
CREATE TABLE tidegate.backfill (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL REFERENCES tidegate.job,
    source text NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'abandoned')),
    holder text NOT NULL,
    lease_until timestamptz NOT NULL,
    records bigint NOT NULL DEFAULT 0,
    dead_letters bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE UNIQUE INDEX one_running_backfill ON tidegate.backfill (job) WHERE state = 'running';

-- Files of a service's own migrations folder that `tidegate migrate` has run.
CREATE TABLE tidegate.user_migration (
    service text NOT NULL,
    name text NOT NULL,
    sha256 bytea NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (service, name)
);
