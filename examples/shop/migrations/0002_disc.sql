-- What the disc company sells to a tenant and brand, in the newest version that came.
CREATE TABLE disc (
    tenant text NOT NULL,
    brand text NOT NULL,
    disc_id text NOT NULL,
    title text NOT NULL,
    price_cents bigint NOT NULL,
    is_withdrawn boolean NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, brand, disc_id)
);
