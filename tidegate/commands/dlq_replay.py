"""`tidegate dlq replay` and `discard`: the plan, and with --yes the run itself, to its end or until a signal."""

from __future__ import annotations

from typing import Annotated

import typer

from dlq.runs import RunKind
from tidegate.commands.decisions import MOST_RUN, DigestOption, ForceOption, LetterOption, WhyOption, YesOption
from tidegate.commands.dlq_filters import Brand, ErrorText, Fingerprint, Key, Since, Status, Tenant, TypeName, Until
from tidegate.commands.dlq_run import go
from tidegate.commands.dlq_words import How, Words
from tidegate.commands.options import AppOption, JsonOption, examples
from tidegate_kernel.errors import Reason

REPLAY_EXAMPLES = examples(
    "tidegate dlq replay --letter 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1                   [dim]# the plan[/dim]",
    "tidegate dlq replay --job ledger --fingerprint 3f0c9a2b7d11e604 --digest D --reason 'mended in 4.2' --yes",
    "tidegate dlq replay --job nightly --tenant acme         [dim]# items of a job by the clock[/dim]",
    "tidegate dlq replay --job ledger --rehearse             [dim]# how many would pass; nothing is changed[/dim]",
    "tidegate dlq replay --resume 17                              [dim]# after a stop, a crash, an approval[/dim]",
)
DISCARD_EXAMPLES = examples(
    "tidegate dlq discard --letter 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1                  [dim]# the plan[/dim]",
    "tidegate dlq discard --job ledger --failed-for undecodable --since 2h --reason 'test traffic' --yes",
)

JobName = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Whose letters; found from --letter.")]
FailedFor = Annotated[Reason | None, typer.Option("--failed-for", help="Dead for this reason.", metavar="REASON")]
RateOption = Annotated[
    int | None, typer.Option("--rate", min=1, help="Letters and parked events a second; else TIDEGATE_REPLAY_RATE.")
]
ResumeOption = Annotated[
    int | None,
    typer.Option(
        "--resume", metavar="RUN", min=1, max=MOST_RUN, help="What is left of this run; begins an approved one."
    ),
]
FromTopicOption = Annotated[
    bool, typer.Option("--from-topic", help="Bring the letters of the DLQ topic in first, as 'dlq import' does.")
]
RehearseOption = Annotated[
    bool, typer.Option("--rehearse", help="What would become of them with today's code; all is rolled back.")
]


def replay_command(
    letter: LetterOption = None,
    job: JobName = None,
    failed_for: FailedFor = None,
    fingerprint: Fingerprint = None,
    type_name: TypeName = None,
    tenant: Tenant = None,
    brand: Brand = None,
    since: Since = None,
    until: Until = None,
    status: Status = None,
    error: ErrorText = None,
    key: Key = None,
    reason: WhyOption = "",
    yes: YesOption = False,
    force: ForceOption = False,
    digest: DigestOption = None,
    rate: RateOption = None,
    resume: ResumeOption = None,
    from_topic: FromTopicOption = False,
    rehearse: RehearseOption = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give dead letters, and the events parked behind them, to their own job again: no other group sees them.

    Those of items are done again by a run that a worker takes.

    Exit 0: all of them came to an end, or such a run is due. 1: some failed again or are left, or another run has them.
    3: refused.
    """
    words = Words(
        letters=letter or (), job=job, failed_for=failed_for, fingerprint=fingerprint, type=type_name, tenant=tenant,
        brand=brand, since=since, until=until, status=status or (), error=error, key=key,
    )  # fmt: skip
    how = How(
        reason=reason, is_sure=yes, is_forced=force, digest=digest, rate=rate, resume=resume, from_topic=from_topic,
        is_rehearsal=rehearse, as_json=as_json,
    )  # fmt: skip
    go(app, RunKind.REPLAY, words, how)


def discard_command(
    letter: LetterOption = None,
    job: JobName = None,
    failed_for: FailedFor = None,
    fingerprint: Fingerprint = None,
    type_name: TypeName = None,
    tenant: Tenant = None,
    brand: Brand = None,
    since: Since = None,
    until: Until = None,
    status: Status = None,
    error: ErrorText = None,
    key: Key = None,
    reason: WhyOption = "",
    yes: YesOption = False,
    force: ForceOption = False,
    digest: DigestOption = None,
    rate: RateOption = None,
    resume: ResumeOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close dead letters without their effect, for ever; events parked behind them are handled. For admins.

    The letter is kept, and every later read of the job passes its record by, every later run its item. Exit codes as of
    'dlq replay'.
    """
    words = Words(
        letters=letter or (), job=job, failed_for=failed_for, fingerprint=fingerprint, type=type_name, tenant=tenant,
        brand=brand, since=since, until=until, status=status or (), error=error, key=key,
    )  # fmt: skip
    how = How(
        reason=reason, is_sure=yes, is_forced=force, digest=digest, rate=rate, resume=resume, as_json=as_json
    )  # fmt: skip
    go(app, RunKind.DISCARD, words, how)
