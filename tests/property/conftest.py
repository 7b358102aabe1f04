"""The stages that all schedules are played on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.property.ensemble import Ensemble, opened_ensemble
from tests.property.stage import Stage, opened_stage
from tidegate.testing.databases import Template


@pytest.fixture(scope="module")
def stage(tidegate_postgres_template: Template) -> Iterator[Stage]:
    """Plays schedules one after the other on a real Postgres."""
    with tidegate_postgres_template.copied() as dsn, opened_stage(dsn) as opened:
        yield opened


@pytest.fixture(scope="module")
def ensemble(tidegate_postgres_template: Template) -> Iterator[Ensemble]:
    """As many stages as there are cores."""
    with ExitStack() as copies:
        dsns = [copies.enter_context(tidegate_postgres_template.copied()) for _ in os.sched_getaffinity(0)]
        with opened_ensemble(dsns) as opened:
            yield opened
