"""Dead letters that leave: those decided long ago, and what was in those that somebody had erased."""

from tidegate.migrations.sql import sql_beside

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
