"""The small service with a job by the clock whose failed items are dead letters."""

import os
from datetime import timedelta

from clocked import (  # type: ignore[import-not-found]  # commands are typed in this folder
    Note,
    PaymentsDue,
    itself,
    note,
    payment_of,
    payments_due,
)

from tidegate import App, Every, ScheduledJob, Scope, answer, handle

settling = ScheduledJob(
    code="settling",
    trigger=Every(timedelta(days=1)),
    query=PaymentsDue,
    command=itself,
    key=payment_of,
    scopes=[Scope("acme"), Scope("zeta")],
    runbook="docs/runbooks/notes.md",
    partial_failure="quarantine",
)
app = App(
    service=f"{os.environ.get('SMALL_PREFIX', 'small')}-quarantine",
    owner="payments-team",
    jobs=[],
    clock_jobs=[settling],
    handlers=[answer(PaymentsDue, payments_due), handle(Note, note)],
)
