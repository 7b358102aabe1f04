"""Letters of items stand in one list with those of records."""

from tidegate.migrations.sql import sql_beside

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
