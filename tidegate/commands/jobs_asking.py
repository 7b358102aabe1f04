"""What the commands about runs share: whom they ask, about which job, and how many rows they show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.settings import Settings

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Code of the job.")]
MaybeJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of one job.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit and whoever comes next.")]


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Connection]:
    """Yields a connection to a database that has the tables of this release. Raises Misconfigured, Unreachable."""
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        yield connection


def code_of(app: App, job: str | None) -> str | None:
    """The code of the job by the clock, None for all of them. Raises Misconfigured for one that is none."""
    return None if job is None else app.clock_job(job).code


def scope_text(tenant: str, brand: str) -> str:
    """A scope as tables show it."""
    return "/".join(filter(None, (tenant, brand)))
