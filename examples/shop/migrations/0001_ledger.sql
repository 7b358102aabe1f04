-- What every customer of a tenant and brand has bought.
CREATE TABLE ledger (
    tenant text NOT NULL,
    brand text NOT NULL,
    customer_id text NOT NULL,
    orders bigint NOT NULL,
    cents bigint NOT NULL,
    PRIMARY KEY (tenant, brand, customer_id)
) WITH (fillfactor = 80);  -- accounts change often: room on the page keeps updates out of the index
