-- Up to which occurrence (inclusive) a job's schedule has been made into runs.
CREATE TABLE tidegate.job_clock (
    job smallint PRIMARY KEY REFERENCES tidegate.job,
    scheduled_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A run of a job by the clock. tenant, brand: whose data it works on; empty text: none, or all of them. scheduled_at: what
-- it was made for; due_at: when it may begin. first_run: the run that a retry goes on with. token: of the lease lock_name,
-- under which it runs or ran last; every write of a run names it. missed: occurrences before it that got no run.
CREATE TABLE tidegate.job_run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL REFERENCES tidegate.job,
    tenant text NOT NULL DEFAULT '',
    brand text NOT NULL DEFAULT '',
    scheduled_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    trigger text NOT NULL CHECK (trigger IN ('schedule', 'manual', 'retry')),
    state text NOT NULL DEFAULT 'due'
        CHECK (state IN ('due', 'running', 'done', 'failed', 'stalled', 'cancelled', 'skipped_overlap')),
    lock_name text NOT NULL,
    missed integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 1,
    first_run bigint,
    parameters jsonb NOT NULL DEFAULT '{}',
    idempotency_key text,
    asked_by text,
    reason text NOT NULL DEFAULT '',
    correlation_id uuid NOT NULL DEFAULT gen_random_uuid(),
    token bigint,
    holder text,
    processed bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancel_asked_by text,
    error_class text,
    error_message text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    moved_at timestamptz,
    finished_at timestamptz
) WITH (fillfactor = 70);  -- progress stays a heap-only update
-- Any number of schedulers: an occurrence becomes one run for each scope.
CREATE UNIQUE INDEX one_run_of_occurrence ON tidegate.job_run (job, tenant, brand, scheduled_at) WHERE trigger = 'schedule';
CREATE UNIQUE INDEX one_run_of_request ON tidegate.job_run (job, tenant, brand, idempotency_key);
CREATE INDEX job_run_due ON tidegate.job_run (due_at, id) WHERE state = 'due';
CREATE INDEX job_run_running ON tidegate.job_run (job) WHERE state = 'running';
CREATE INDEX job_run_unfinished ON tidegate.job_run (job, tenant, brand) WHERE state IN ('due', 'running');
CREATE INDEX job_run_history ON tidegate.job_run (job, finished_at);

-- How far the runs of a job have come in a scope: the key of the last item that was dealt with. first_run: of the run that
-- has written it; token: under which.
CREATE TABLE tidegate.job_checkpoint (
    job smallint NOT NULL REFERENCES tidegate.job,
    tenant text NOT NULL DEFAULT '',
    brand text NOT NULL DEFAULT '',
    cursor text NOT NULL,
    first_run bigint NOT NULL,
    token bigint NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, tenant, brand)
) WITH (fillfactor = 50);

-- What became of an item, by what it is done once: written in the transaction that did it. done: never again. failed: the
-- next run that meets it tries again. quarantined: nobody does until somebody has looked.
CREATE TABLE tidegate.job_item (
    job smallint NOT NULL REFERENCES tidegate.job,
    tenant text NOT NULL DEFAULT '',
    brand text NOT NULL DEFAULT '',
    key text COLLATE "C" NOT NULL,
    run bigint NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('done', 'failed', 'quarantined')),
    error_class text,
    error_message text,
    decided_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, tenant, brand, key)
);
CREATE INDEX job_item_by_run ON tidegate.job_item (run) WHERE outcome <> 'done';
CREATE INDEX job_item_by_age ON tidegate.job_item (job, decided_at) WHERE outcome = 'done';
