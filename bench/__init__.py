"""Measures Tidegate against what it is made of, on real Kafka and real Postgres: `python -m bench`."""
