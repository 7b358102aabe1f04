"""Revisions are plain SQL: each `.py` file runs the `.sql` file of the same name beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from alembic import op


def sql_beside(revision_file: str) -> Callable[[], None]:
    """Returns the `upgrade` function of a revision: it runs the whole `.sql` file in the revision's transaction."""
    script = Path(revision_file).with_suffix(".sql")

    def upgrade() -> None:
        text = script.read_text(encoding="utf-8")
        # A table that live workers use must not queue them behind a migration that waits: fail and be run again.
        op.execute("SET LOCAL lock_timeout = '10s'")
        # The driver's own `execute` takes several statements at once; SQLAlchemy's prepares, which takes one.
        connection = op.get_bind().connection.dbapi_connection
        assert connection is not None
        connection.run_async(lambda driver: driver.execute(text))

    return upgrade
