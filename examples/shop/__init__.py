"""A CD shop: one topic of orders, a ledger per customer, a search of orders, revenue by day."""
