"""Replay: runs over dead letters, what became of each, and corrections."""

from tidegate.migrations.sql import sql_beside

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
