-- A key of a job whose later events have to wait: for as long as a dead letter or a parked event of it remains. Whoever
-- parks, replays, discards or expires holds this row FOR UPDATE in the transaction that decides. key: a digest of the key,
-- because a key may be longer than an index takes. turns: how often something was added to its sequence. parked: how many
-- events wait in it.
CREATE TABLE tidegate.blocked_key (
    job smallint NOT NULL REFERENCES tidegate.job,
    topic text NOT NULL,
    key uuid NOT NULL,
    turns bigint NOT NULL DEFAULT 1,
    parked integer NOT NULL DEFAULT 0 CHECK (parked >= 0),
    blocked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, topic, key)
) WITH (fillfactor = 50);

-- A dead letter that blocks a key: its own, or, of an event that a backfill met elsewhere, that one too. turn and offset: its place in the key's sequence.
CREATE TABLE tidegate.blocking_letter (
    letter uuid NOT NULL REFERENCES tidegate.dead_letter,
    job smallint NOT NULL,
    topic text NOT NULL,
    key uuid NOT NULL,
    turn bigint NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (letter, topic, key),
    FOREIGN KEY (job, topic, key) REFERENCES tidegate.blocked_key
);
CREATE INDEX blocking_letter_by_key ON tidegate.blocking_letter (job, topic, key, turn, "offset");

-- An event that waits behind a dead letter of its key: the whole record, and the claim that it keeps. order_key: the key
-- in whose sequence it stands. waits_for: the record's own key, where the job orders by another one and a record that
-- could not be decoded blocks it.
CREATE TABLE tidegate.parked (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job smallint NOT NULL,
    topic text NOT NULL,
    order_key uuid NOT NULL,
    waits_for uuid,
    turn bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    recorded_at timestamptz,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL DEFAULT '{}',
    header_values bytea[] NOT NULL DEFAULT '{}',
    event_id text,
    event_type text NOT NULL,
    tenant text NOT NULL DEFAULT '',
    brand text NOT NULL DEFAULT '',
    claimed_bucket date NOT NULL,
    claimed_id uuid NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (job, topic, topic_id, partition, "offset"),
    FOREIGN KEY (job, topic, order_key) REFERENCES tidegate.blocked_key
);
CREATE INDEX parked_by_key ON tidegate.parked (job, topic, order_key, turn, "offset");
CREATE INDEX parked_waits_for ON tidegate.parked (job, topic, waits_for) WHERE waits_for IS NOT NULL;
-- Of texts that come from records only the beginning is in an index: a long one is no reason for a settle to fail.
CREATE INDEX parked_by_event ON tidegate.parked (job, substr(event_id, 1, 200));

-- Whether any key of a job is blocked, by a snapshot of its own: VOLATILE plpgsql takes a new one for each statement in
-- it. The claim asks this with the number of ids that it took, which is known once it has waited for everybody who was
-- taking one of them; its own snapshot is older than that, and would not show a letter that such a one has left.
CREATE FUNCTION tidegate.has_blocked_key(job smallint, claimed bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM tidegate.blocked_key AS b WHERE b.job = has_blocked_key.job);
END
$$;
