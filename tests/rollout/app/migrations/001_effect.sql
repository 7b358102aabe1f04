-- No unique key on event_id, on purpose: an event that acts twice must show as two rows.
CREATE TABLE effect (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    partition int NOT NULL,
    place bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
