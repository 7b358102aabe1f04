"""Jobs by the clock: which schedule it is that has been made into runs."""

from tidegate.migrations.sql import sql_beside

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
