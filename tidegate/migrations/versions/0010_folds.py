"""Fold projections: what was made of the events of each key, and which keys the sink does not show yet."""

from tidegate.migrations.sql import sql_beside

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
