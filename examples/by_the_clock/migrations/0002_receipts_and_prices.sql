CREATE TABLE receipt (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE price (tenant text, sku text, cents bigint NOT NULL, PRIMARY KEY (tenant, sku));
