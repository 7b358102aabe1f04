"""Revenue by day, tenant and brand: one row per order that is not cancelled, in ClickHouse."""
