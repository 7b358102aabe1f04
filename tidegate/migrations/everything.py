"""All that has to be there before jobs run: Tidegate's tables, the service's own, and what its sinks write to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from projections.sink import SinkDeclaration
from tidegate.app import App
from tidegate.jobs.declaration import FoldJob, ProjectionJob
from tidegate.migrations.grants import Duty, grant, lacking
from tidegate.migrations.phases import Migrated, Phase
from tidegate.migrations.revisions import pending_migrations
from tidegate.migrations.schema import exclusively, upgrade
from tidegate.migrations.service import ServiceMigrations
from tidegate_kernel.errors import Misconfigured, Transient
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings


async def apply_all(
    settings: Settings, app: App | None, phase: Phase, *, roles: Mapping[str, Duty] = MappingProxyType({})
) -> Migrated:
    """Everything of `phase` is there; returns what was missing. Several at once wait for each other.

    `roles` are granted what their duty needs, each time. Raises Misconfigured, or Transient for a migration that could
    not get its lock.
    """
    dsn = settings.postgres_dsn.get_secret_value()
    async with exclusively(dsn):
        own = await upgrade(dsn, phase)
        folder = _folder(app)
        files = await folder.apply(dsn, phase) if folder is not None else ()
        sinks = await _prepare_sinks(settings, app) if phase is not Phase.POST else ()
        async with connect(dsn) as connection, connection.transaction():
            return Migrated(own, files, sinks, await grant(connection, roles))


async def pending_all(
    settings: Settings, app: App | None, phase: Phase, *, roles: Mapping[str, Duty] = MappingProxyType({})
) -> Migrated:
    """Returns what `apply_all` would do; of `roles`, those that lack something. Raises Misconfigured."""
    dsn = settings.postgres_dsn.get_secret_value()
    folder = _folder(app)
    async with connect(dsn) as connection:
        granted = await lacking(connection, roles)
    return Migrated(
        await pending_migrations(dsn, phase),
        await folder.pending(dsn, phase) if folder is not None else (),
        await _unprepared_sinks(settings, app) if phase is not Phase.POST else (),
        granted,
    )


def _folder(app: App | None) -> ServiceMigrations | None:
    return None if app is None or app.migrations is None else ServiceMigrations(app.service, app.migrations)


def _sinks(app: App | None) -> Sequence[SinkDeclaration]:
    return [job.sink for job in app.jobs if isinstance(job, ProjectionJob | FoldJob)] if app is not None else []


async def _prepare_sinks(settings: Settings, app: App | None) -> Sequence[str]:
    missing = await _unprepared_sinks(settings, app)
    for declaration in _sinks(app):
        async with declaration.open(settings) as sink:
            try:
                await sink.prepare()
            except Transient as error:
                raise Misconfigured(f"{declaration.where(settings)} cannot be prepared: {error}") from error
    return missing


async def _unprepared_sinks(settings: Settings, app: App | None) -> Sequence[str]:
    missing = []
    for declaration in _sinks(app):
        async with declaration.open(settings) as sink:
            try:
                await sink.check()
            except Misconfigured:
                missing.append(declaration.name)
            except Transient as error:
                raise Misconfigured(f"{declaration.where(settings)} cannot be asked: {error}") from error
    return missing
