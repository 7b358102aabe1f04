-- A provider as all processes of a service call it. next_at: when the next call may begin; paused_until: it wants to be left
-- alone; failures: calls that failed in a row. trial_at: the circuit is open, and when one call may try; NULL: it is closed.
-- rests: how often in a row it has opened.
CREATE TABLE tidegate.provider (
    service text NOT NULL,
    name text NOT NULL,
    next_at timestamptz NOT NULL DEFAULT '-infinity',
    paused_until timestamptz NOT NULL DEFAULT '-infinity',
    failures integer NOT NULL DEFAULT 0,
    trial_at timestamptz,
    rests integer NOT NULL DEFAULT 0,
    PRIMARY KEY (service, name)
) WITH (fillfactor = 50);

-- What the last successful run of a job left in a scope. run, token: which it was, and under which token of its lease.
-- synced_until: when it began. etag: of its whole answer to the question for what has changed since asked_since (NULL:
-- everything), in which nothing was new. lost_since: asked for what has changed since then, the provider answers with every
-- item that has not been done; NULL: there is none.
CREATE TABLE tidegate.provider_cursor (
    job smallint NOT NULL REFERENCES tidegate.job,
    tenant text NOT NULL,
    brand text NOT NULL,
    run bigint NOT NULL,
    token bigint NOT NULL,
    synced_until timestamptz NOT NULL,
    asked_since timestamptz,
    etag text,
    lost_since timestamptz,
    moved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, tenant, brand)
) WITH (fillfactor = 50);
