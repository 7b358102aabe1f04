"""Fixtures that `tidegate[testing]` brings to pytest: `tidegate_postgres`, the DSN of a real Postgres.

Loaded at every start of pytest in an environment that has Tidegate, so everything is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.testing.databases import Template


@pytest.fixture(scope="session")
def tidegate_postgres_template() -> Iterator[Template]:
    """A database with Tidegate's tables that tests get copies of; its server is started if there is none."""
    from tidegate.testing.databases import database_template

    with database_template() as template:
        yield template


@pytest.fixture
def tidegate_postgres(tidegate_postgres_template: Template) -> Iterator[str]:
    """The DSN of a database of this test's own, with Tidegate's tables and no rows."""
    with tidegate_postgres_template.copied() as dsn:
        yield dsn
