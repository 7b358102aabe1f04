"""Partitions that were added to a topic begin behind what the older ones held."""

from tidegate.migrations.sql import sql_beside

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
