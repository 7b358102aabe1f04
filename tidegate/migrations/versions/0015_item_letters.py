"""Jobs by the clock: items that failed are dead letters, and are done again by runs of their own."""

from tidegate.migrations.sql import sql_beside

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
