"""The job `nightly-reconciliation`."""

from datetime import timedelta

from examples.shop.reconciliation.differences import LedgerDifferences, Limits, correction_of, customer_of
from examples.shop.scopes import SCOPES
from tidegate import Cron, ScheduledJob, Text


def nightly_reconciliation() -> ScheduledJob:
    """By night, when the books of the day before are closed. What is too much for it waits for a person."""
    return ScheduledJob(
        code="nightly-reconciliation",
        trigger=Cron("15 2 * * *", "Europe/Berlin"),
        query=LedgerDifferences,
        command=correction_of,
        key=customer_of,
        scopes=SCOPES,
        partial_failure="quarantine",
        input=Limits,
        tier="critical",
        batch_size=100,
        jitter=timedelta(minutes=10),
        # A night that was missed is found in the morning.
        freshness_sla=timedelta(hours=26),
        runbook="docs/runbooks/nightly-reconciliation.md",
        purpose=Text(
            en="Compares every account of the ledger with the order service's books, and sets right what differs.",
            ru="Сверяет каждый счёт ledger с книгой заказов и исправляет расхождения.",
        ),
    )
