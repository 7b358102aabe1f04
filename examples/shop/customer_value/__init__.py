"""What each customer is worth: all their orders together, kept as states in Postgres and shown in Elasticsearch."""
