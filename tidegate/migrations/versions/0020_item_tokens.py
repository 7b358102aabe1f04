"""The result of an item carries the token of its run."""

from tidegate.migrations.sql import sql_beside

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
