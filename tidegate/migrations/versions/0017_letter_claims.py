"""A letter knows by the database's clock of which day its claim is."""

from tidegate.migrations.sql import sql_beside

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
