"""What every command that decides about letters takes: which ones, why, and whether to do it or to show the plan."""

from __future__ import annotations

from typing import Annotated

import typer

LetterOption = Annotated[
    list[str] | None, typer.Option("--letter", metavar="ID", help="This one, and no filters; may be repeated.")
]
WhyOption = Annotated[
    str, typer.Option("--reason", help="Why you do it, for the audit and whoever comes next. Needed with --yes.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it the plan is shown.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Quarantined letters, too.")]
DigestOption = Annotated[
    str | None, typer.Option("--digest", metavar="D", help="Only if the plan still is the one that was shown.")
]

MOST_RUN = 2**63 - 1
"""The largest number that a run can have: a bigint."""
