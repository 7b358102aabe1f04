"""Rows of the audit leave after their retention, from its beginning alone."""

from tidegate.migrations.sql import sql_beside

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
