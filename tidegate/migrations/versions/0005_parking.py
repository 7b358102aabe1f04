"""What waits behind a dead letter of its key."""

from tidegate.migrations.sql import sql_beside

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
