"""What operators want of a job, what workers say of it, and what is known of owners that died."""

from tidegate.migrations.sql import sql_beside

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
