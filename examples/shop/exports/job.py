"""The job `expired-exports`."""

from datetime import timedelta

from examples.shop.exports.files import ExportFiles, ExportsAway
from examples.shop.exports.removal import ExpiredExports, place_of, removal_of
from examples.shop.scopes import SCOPES
from tidegate import Cron, Dependency, MaintenanceJob, Text

KEPT = timedelta(days=30)
"""As long as a customer may fetch what was asked for, by the shop's terms."""


def expired_exports_job() -> MaintenanceJob:
    """Every night, when nobody fetches anything. Exports are customers' data: each removal is audited."""
    return MaintenanceJob(
        code="expired-exports",
        trigger=Cron("30 3 * * *", "Europe/Berlin"),
        retention=KEPT,
        is_sensitive=True,
        query=ExpiredExports,
        command=removal_of,
        key=place_of,
        scopes=SCOPES,
        batch_size=100,
        jitter=timedelta(minutes=10),
        needs=["exports"],
        purpose=Text(
            en="Removes exports of customers' data, rows and files, once they are past their time.",
            ru="Удаляет выгрузки данных покупателей, строки и файлы, когда их срок истёк.",
        ),
        runbook="docs/runbooks/expired-exports.md",
    )


def exports_dependency(files: ExportFiles) -> Dependency:
    """The disk with the files: while it is away, a run waits, and nothing is given up."""
    return Dependency("exports", probe=files.is_there, transient=[ExportsAway])
