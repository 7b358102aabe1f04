"""Freshness: leases, and up to where readers see what a projection has settled."""

from tidegate.migrations.sql import sql_beside

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

upgrade = sql_beside(__file__)
