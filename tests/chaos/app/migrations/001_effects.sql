-- No unique key on event_id, on purpose: an event that acts twice must show as two rows.
CREATE TABLE effect (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    key text NOT NULL,
    version bigint NOT NULL,
    cents bigint NOT NULL
);
CREATE TABLE account (
    key text PRIMARY KEY,
    events bigint NOT NULL,
    cents bigint NOT NULL
);
