"""Stable batches: the range of records that a position's owner applies as one."""

from tidegate.migrations.sql import sql_beside

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
