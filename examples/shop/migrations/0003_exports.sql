-- What a customer asked to have of their data. The file <id>.csv lies in the exports' directory: the row is there before
-- it, and until after it. is_held: somebody still needs it, however old it is.
CREATE TABLE export (
    tenant text NOT NULL,
    brand text NOT NULL,
    id uuid NOT NULL,
    customer_id text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    is_ready boolean NOT NULL DEFAULT false,
    is_held boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, brand, id)
);
CREATE INDEX export_by_age ON export (tenant, brand, requested_at, id) WHERE NOT is_held;
