"""`tidegate jobs run JOB --dry-run`: what would be removed, and nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tidegate.app import App
from tidegate.commands.jobs_asking import scope_text
from tidegate.commands.options import log_to_stderr, print_json, print_table, say
from tidegate.commands.readable import counted
from tidegate.jobs.clockwork.requests import RunRequest
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # with it come the clients of Kafka and all sinks
    from tidegate.jobs.clockwork.maintenance_preview import Preview

_COLUMNS = ["tenant", "older than", "items", "chunks", "passed over", "first", "last"]


def tell_dry_run(app: App, settings: Settings, request: RunRequest, *, as_json: bool) -> None:
    """Shows what a run would remove, scope by scope; makes no run. Raises Misconfigured as `dry_run`."""
    from tidegate.commands.signals import run_until_signal

    if request.key is not None:
        raise Misconfigured("--dry-run makes no run that --key could find again; leave one of them out")
    log_to_stderr()  # the application's own queries may log
    told = run_until_signal(lambda stop: _dry_run(app, settings, request, stop), drain=settings.drain_timeout)
    if as_json:
        print_json({"is_done": False, "scopes": [asdict(each) for each in told]})
        return
    print_table(_COLUMNS, [_row(each) for each in told], right=["items", "chunks", "passed over"])
    items = sum(each.items for each in told)
    say(f"a run of job {request.job.code!r} would remove {counted(items, 'item')}; nothing was removed")


async def _dry_run(app: App, settings: Settings, request: RunRequest, stop: asyncio.Event) -> Sequence[Preview]:
    from tidegate.dry_running import dry_run

    await require_schema(settings.postgres_dsn.get_secret_value())
    return await dry_run(app, settings, request, stop=stop)


def _row(told: Preview) -> list[Any]:
    before = "by its own rule" if told.expired_before is None else f"{told.expired_before:%Y-%m-%d %H:%M:%SZ}"
    keys = [escape(key or "") for key in (told.first, told.last)]
    return [escape(scope_text(told.tenant, told.brand)), before, told.items, told.chunks, told.passed_over, *keys]
