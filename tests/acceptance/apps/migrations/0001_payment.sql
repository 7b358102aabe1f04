CREATE TABLE payment (id text PRIMARY KEY, cents bigint NOT NULL);
