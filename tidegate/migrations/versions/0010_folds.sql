-- What a fold has made of its events, by key. state NULL: there is none, or none any more. revision: one more with each
-- change; it is the version of the key's document, so it must never restart: a deleted state keeps its row. 0: nothing
-- was ever made of the key. tenant: whose events the state was made of.
CREATE TABLE tidegate.fold_state (
    job smallint NOT NULL REFERENCES tidegate.job,
    key text COLLATE "C" NOT NULL,
    state json,
    revision bigint NOT NULL DEFAULT 0,
    tenant text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, key)
) WITH (fillfactor = 80);

-- Keys whose state the sink may not show yet: one row a key, however often it changed. since: when it changed first after
-- it was last rendered. taken_until: a renderer is at it. With an error it rests until the key changes, until a release
-- that is not among failed_in starts, or until somebody has it rendered again.
CREATE TABLE tidegate.dirty (
    job smallint NOT NULL,
    key text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    taken_until timestamptz,
    error text,
    failed_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    failed_in text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (job, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX dirty_next ON tidegate.dirty (job, since) WHERE error IS NULL;
CREATE INDEX dirty_failed ON tidegate.dirty (job, failed_at) WHERE error IS NOT NULL;
