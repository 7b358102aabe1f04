"""`tidegate audit`: what was done by hand, by whom, and whether the record of it is whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidegate.commands.moments import moment
from tidegate.commands.options import JsonOption, examples, print_json, print_table, say, settings_of, tell, wait_for
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.audit import Outcome
from tidegate_kernel.audit_chain import AuditFilter, AuditRow, list_audit, verify_receipt
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings

if TYPE_CHECKING:  # it reads the topic too: `audit list` needs no Kafka client
    from tidegate.auditing import AuditReport

audit_commands = typer.Typer(
    name="audit", help="What was done by hand, by whom, and whether the record of it is whole.", no_args_is_help=True
)

_RECEIPT = re.compile(r"(\d{1,18}):([0-9a-fA-F]{8,64})")
_MOST_SHOWN = 10


@audit_commands.command(
    "list",
    epilog=examples(
        "tidegate audit list --since 24h",
        "tidegate audit list --action job --outcome denied     [dim]# job:pause, job:resume[/dim]",
        "tidegate audit list --actor anna --limit 200 --json",
    ),
)
def list_command(
    actor: Annotated[str | None, typer.Option(help="Name of the token that did it.")] = None,
    action: Annotated[str | None, typer.Option(help="As job:pause; or 'job' for all of its kind.")] = None,
    target: Annotated[str | None, typer.Option(help="What it was done to.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="How it ended.")] = None,
    since: Annotated[str | None, typer.Option(metavar="24h|ISO", help="Not older than this.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show what was done or tried, newest first."""
    wanted = AuditFilter(actor, action, target, outcome, None if since is None else moment("--since", since), limit)
    rows = wait_for(_list(settings_of(), wanted))
    if as_json:
        print_json([{**row._asdict(), "hash": row.hash.hex()} for row in rows])
    else:
        columns = ["row", "time", "who", "role", "what", "target", "outcome", "reason"]
        print_table(columns, [_cells(row) for row in rows], right=["row"])


@audit_commands.command(
    "verify",
    epilog=examples(
        "tidegate audit verify",
        "tidegate audit verify --receipt 57:ab12cd34ef567890   [dim]# as a command printed it[/dim]",
        "tidegate audit verify --after 60                      [dim]# a restore before row 60 is known[/dim]",
    ),
)
def verify_command(
    receipt: Annotated[
        list[str] | None, typer.Option(metavar="ROW:HASH", help="Check this row alone; may be repeated.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Pass over rows up to this that differ from the topic.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Check that no row was changed, removed or inserted, in the table and against its topic; exit 1 if one was."""
    settings = settings_of()
    if receipt:
        _check_receipts(settings, receipt, as_json=as_json)
        return
    report = wait_for(_verify(settings, after))
    if as_json:
        print_json(
            {
                "intact": report.is_intact,
                "rows": report.rows,
                "end": str(report.end),
                "anchored": report.anchored,
                "breaks": report.breaks,
                "notes": report.notes,
            }
        )
    else:
        _print(report)
    if not report.is_intact:
        raise typer.Exit(1)


def _print(report: AuditReport) -> None:
    for note in report.notes:
        say(f"note: {note}")
    for each in report.breaks[:_MOST_SHOWN]:
        tell(f"broken: {each}")
    if (more := len(report.breaks) - _MOST_SHOWN) > 0:
        tell(f"broken: and {more} more; --json tells all")
    if report.is_intact:
        anchored = "not compared with the topic" if report.anchored is None else f"{report.anchored} also in the topic"
        tell(f"{report.rows} rows, unbroken up to {report.end}; {anchored}")


def _check_receipts(settings: Settings, receipts: Sequence[str], *, as_json: bool) -> None:
    wanted = [_parsed(text) for text in receipts]
    problems = wait_for(_receipts(settings, wanted))
    if as_json:
        pairs = zip(receipts, problems, strict=True)
        print_json([{"receipt": text, "intact": problem is None, "problem": problem} for text, problem in pairs])
    else:
        for text, problem in zip(receipts, problems, strict=True):
            tell(f"receipt {text}: the row is as it was written" if problem is None else f"broken: {problem}")
    if any(problems):
        raise typer.Exit(1)


def _parsed(text: str) -> tuple[int, str]:
    found = _RECEIPT.fullmatch(text.strip())
    if found is None:
        raise Misconfigured(f"--receipt {text!r} is not of the form ROW:HASH, as in 57:ab12cd34ef567890")
    return int(found[1]), found[2]


async def _list(settings: Settings, wanted: AuditFilter) -> Sequence[AuditRow]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await list_audit(connection, wanted)


async def _verify(settings: Settings, after: int) -> AuditReport:
    from tidegate.auditing import verify_audit

    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await verify_audit(connection, settings.kafka, after=after)


async def _receipts(settings: Settings, wanted: Sequence[tuple[int, str]]) -> Sequence[str | None]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return [await verify_receipt(connection, seq, digits) for seq, digits in wanted]


def _cells(row: AuditRow) -> list[object]:
    time = f"{row.at:%Y-%m-%d %H:%M:%SZ}"
    outcome = row.outcome if row.error_class in (None, "Denied") else f"{row.outcome} ({row.error_class})"
    return [row.seq, time, escape(row.actor), row.role, row.action, escape(row.target), outcome, escape(row.reason)]
