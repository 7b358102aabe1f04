"""Upkeep of the inbox: days ahead, days past the horizon."""

from tidegate.migrations.sql import sql_beside

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
