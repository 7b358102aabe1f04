"""The first tables. A new database has no code to wait for, so all of it comes before."""

from tidegate.migrations.sql import sql_beside

revision = "0001"
down_revision = None
branch_labels = ("pre",)
depends_on = None

upgrade = sql_beside(__file__)
