"""The stage that all schedules are played on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.property.stage import Stage, opened_stage
from tidegate.testing.databases import Template


@pytest.fixture(scope="module")
def stage(tidegate_postgres_template: Template) -> Iterator[Stage]:
    """Plays schedules one after the other on a real Postgres."""
    with tidegate_postgres_template.copied() as dsn, opened_stage(dsn) as opened:
        began = time.monotonic()
        yield opened
        print(f"\n{opened.played} schedules in {time.monotonic() - began:.0f} s; struck: {dict(opened.struck)}")
