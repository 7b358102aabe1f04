"""The last success of a scope is found without a look at all of its runs."""

from tidegate.migrations.sql import sql_beside

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
