"""Who may do what, and what was done: tokens and the audit."""

from tidegate.migrations.sql import sql_beside

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
