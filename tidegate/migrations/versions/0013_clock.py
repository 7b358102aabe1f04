"""Jobs by the clock: runs, how far a schedule has become runs, checkpoints, results of items."""

from tidegate.migrations.sql import sql_beside

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
