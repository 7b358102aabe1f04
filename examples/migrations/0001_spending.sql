CREATE TABLE spending (customer_id text PRIMARY KEY, cents bigint NOT NULL);
