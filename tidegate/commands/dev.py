"""`tidegate dev`: servers, tables, topics and all jobs in one command, started anew when a file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.app import App
from tidegate.commands.late import NEEDS_DEV
from tidegate.commands.loading import load_app
from tidegate.commands.local_token import make_local_token
from tidegate.commands.options import AddressSettings, AppOption, examples, say, settings_of, use_local_stack, wait_for
from tidegate.commands.topics import planned
from tidegate.jobs.topic_plan import create_missing
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:
    from watchfiles import Change  # only tidegate[dev] has it

EXAMPLES = examples("tidegate dev --app shop.app:app", "tidegate dev --app shop.app:app --no-reload")

# Longer than the drain time-out and the relay's rest: a worker that stops in order is not cut off.
_STOP_SECONDS = 30.0
_LOOK_EVERY_MS = 1000


def dev_command(
    app: AppOption = None,
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Start anew when a .py file changes.")] = True,
    port: Annotated[int, typer.Option(min=0, help="Of /metrics, /livez and /readyz; 0: any free one.")] = 0,
) -> None:
    """Start servers where none are given, migrate, create topics and run all jobs of --app, until Ctrl-C.

    Servers stay up afterwards and keep their data: 'tidegate stack down' ends them.
    """
    if not app:
        raise Misconfigured("no application given; name it with --app module:attribute or TIDEGATE_APP")
    start_servers()
    prepare_command(app)
    os.environ.setdefault("TIDEGATE_LOG_FORMAT", "console")
    command = [sys.executable, "-m", "tidegate", "run", "--all", "--app", app, "--port", str(port)]
    if reload:
        _run_reloading(command, app)
    else:
        raise typer.Exit(_run_once(command))


def prepare_command(app: AppOption = None) -> None:
    """Migrate and create topics for --app: what `dev` does before each start."""
    loaded = load_app(app)
    settings = settings_of()
    for line in wait_for(prepare(loaded, settings)):
        say(line)


def start_servers() -> None:
    """Every server that a job may need answers, and the environment names it: those given, or the local stack's.

    Raises Misconfigured without tidegate[dev].
    """
    if any(name in os.environ for name in AddressSettings):
        return
    try:
        from tidegate.stack.progress import reporter
        from tidegate.stack.stack import Stack
        from tidegate.stack.state import default_folder
    except ModuleNotFoundError as error:
        raise Misconfigured(NEEDS_DEV) from error
    with reporter() as report:
        Stack(default_folder()).up(report)
    use_local_stack()


async def prepare(app: App, settings: Settings) -> list[str]:
    """Tables, sinks and topics of `app` are there; returns a line for each thing that was made."""
    # Here, because SQLAlchemy and Alembic take longer to import than most commands run.
    from tidegate.migrations.everything import apply_all
    from tidegate.migrations.phases import Phase

    done = await apply_all(settings, app, Phase.ALL)
    topics = await create_missing(settings.kafka, planned(app, []))
    lines = [f"migrated: {name}" for name in (*done.migrations, *done.service_migrations)]
    lines += [f"prepared: sink {name}" for name in done.sinks]
    lines += [f"created: topic {topic.name}" for topic in topics if topic.is_new]
    token = await make_local_token(settings)
    return lines if token is None else [*lines, token]


def _run_once(command: list[str]) -> int:
    with _stopping_signals_as_interrupts(), _worker(command) as worker:
        return worker.wait()


def _run_reloading(command: list[str], app: str) -> None:
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError as error:
        raise Misconfigured(NEEDS_DEV) from error
    # The local servers' own files, where they stand in this folder, are nobody's change.
    only = PythonFilter(ignore_paths=[Path.cwd() / ".state"], extra_extensions=(".sql",))
    changes = watch(
        Path.cwd(), watch_filter=only, rust_timeout=_LOOK_EVERY_MS, yield_on_timeout=True, raise_interrupt=True
    )
    with _stopping_signals_as_interrupts():
        while True:
            with _worker(command) as worker:
                changed = _next_change(changes, worker)
            if changed is None:
                return
            say(f"changed: {', '.join(changed)}; starting anew")
            # In a process of its own, because this one has the old modules. Its own message says what is wrong.
            subprocess.run([sys.executable, "-m", "tidegate", "dev-prepare", "--app", app], check=False)


def _next_change(changes: Iterator[set[tuple[Change, str]]], worker: subprocess.Popen[bytes]) -> list[str] | None:
    """Waits for a change and returns what changed; None if there is none to come."""
    is_running = True
    for changed in changes:
        if changed:
            return sorted({os.path.relpath(path) for _, path in changed})
        if is_running and worker.poll() is not None:
            is_running = False
            say(f"the worker ended with exit code {worker.returncode}; it starts anew when a file changes")
    return None


@contextmanager
def _stopping_signals_as_interrupts() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does: quietly, with the worker ended."""

    def interrupt(number: int, frame: object) -> None:  # noqa: ARG001  # as `signal` calls it
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _worker(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that has ended, in order if it can, when the block is left."""
    # In a group of its own: a Ctrl-C of the terminal would reach it beside our SIGTERM, and two signals end it at once.
    worker = subprocess.Popen(command, process_group=0)
    try:
        yield worker
    finally:
        _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.terminate()
    try:
        worker.wait(timeout=_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        worker.kill()
        worker.wait()
