CREATE TABLE account (
    tenant text,
    customer_id text COLLATE "C",
    points bigint NOT NULL,
    used_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, customer_id)
);
INSERT INTO account VALUES ('bolt', 'bea', 30, now() - interval '400 days'), ('bolt', 'bob', 50, now());
