-- The order service's own books, which it writes: every order that was placed. The ledger knows of them by events alone.
CREATE TABLE order_record (
    tenant text NOT NULL,
    brand text NOT NULL,
    order_id text NOT NULL,
    customer_id text COLLATE "C" NOT NULL,
    cents bigint NOT NULL,
    placed_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, brand, order_id)
);
CREATE INDEX order_record_by_customer ON order_record (tenant, brand, customer_id);

-- Until when the books are complete, and all that is in them has long been published. Where there is no row, nothing is
-- reconciled: books that are empty because nobody has filled them are no reason to take everybody's money away.
CREATE TABLE books_closed (
    tenant text NOT NULL,
    brand text NOT NULL,
    closed_until timestamptz NOT NULL,
    PRIMARY KEY (tenant, brand)
);

-- What was set right on accounts, and by which run: nothing is ever taken out of it. difference: its id, the same under
-- every retry.
CREATE TABLE ledger_correction (
    tenant text NOT NULL,
    brand text NOT NULL,
    difference text NOT NULL,
    customer_id text NOT NULL,
    orders bigint NOT NULL,
    cents bigint NOT NULL,
    run bigint NOT NULL,
    token bigint NOT NULL,
    correlation_id uuid NOT NULL,
    corrected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, brand, difference)
);
