"""What looking at dead letters needs."""

from tidegate.migrations.sql import sql_beside

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
