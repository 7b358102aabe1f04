"""Providers of catalogues: how they may be called, and where the next run of a job begins."""

from tidegate.migrations.sql import sql_beside

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
