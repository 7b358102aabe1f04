"""By night the ledger is compared with the order service's own books, and set right where they differ."""
