"""`tidegate dlq`: dead letters as a list, in groups, one by one. Payloads only with the permission to see them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated
from uuid import UUID

import typer

from dlq.states import UNRESOLVED
from tidegate.commands.dlq_edit import EXAMPLES as EDIT_EXAMPLES
from tidegate.commands.dlq_edit import edit_command
from tidegate.commands.dlq_erase import EXAMPLES as ERASE_EXAMPLES
from tidegate.commands.dlq_erase import erase_command
from tidegate.commands.dlq_filters import (
    Brand,
    ErrorText,
    Fingerprint,
    Key,
    Since,
    Status,
    Tenant,
    TypeName,
    Until,
    key_of,
    letter_id,
    span_of,
    states_of,
)
from tidegate.commands.dlq_import import EXAMPLES as IMPORT_EXAMPLES
from tidegate.commands.dlq_import import import_command
from tidegate.commands.dlq_output import (
    Shown,
    plain,
    plain_details,
    print_page,
    print_stats,
    say_what_is_not_shown,
    told,
)
from tidegate.commands.dlq_replay import DISCARD_EXAMPLES, REPLAY_EXAMPLES, discard_command, replay_command
from tidegate.commands.dlq_runs import (
    APPROVE_EXAMPLES,
    RUNS_EXAMPLES,
    STOP_EXAMPLES,
    approve_command,
    runs_command,
    stop_command,
)
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    actor_of,
    examples,
    print_json,
    settings_of,
    wait_for,
)
from tidegate.console.letters import (
    Cursor,
    LetterFilter,
    LetterPage,
    LetterStats,
    find_letter,
    letter_stats,
    list_letters,
    read_letter,
    read_payload,
)
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Reason
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.settings import Settings

letter_commands = typer.Typer(
    name="dlq",
    help="Dead letters: records and items that a job could not handle.",
    no_args_is_help=True,
)

JobNames = Annotated[list[str] | None, typer.Option("--job", metavar="JOB", help="Of this job; may be repeated.")]
ReasonName = Annotated[Reason | None, typer.Option("--reason", help="Why.", metavar="REASON")]


@letter_commands.command(
    "list",
    epilog=examples(
        "tidegate dlq list --app shop.app:app",
        "tidegate dlq list --job ledger --reason handler_failed --since 24h",
        "tidegate dlq list --fingerprint 3f0c9a2b7d11e604 --limit 500 --json",
    ),
)
def list_command(
    job: JobNames = None,
    reason: ReasonName = None,
    fingerprint: Fingerprint = None,
    type_name: TypeName = None,
    tenant: Tenant = None,
    brand: Brand = None,
    since: Since = None,
    until: Until = None,
    status: Status = None,
    error: ErrorText = None,
    key: Key = None,
    after: Annotated[str | None, typer.Option(metavar="PLACE", help="The next page, as the last one named it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters, the newest failure first, without anything of their payload."""
    loaded = load_app(app)
    first, last = span_of(since, until)
    wanted = LetterFilter(
        jobs=job, reason=reason, fingerprint=fingerprint, event_type=type_name, tenant=tenant, brand=brand,
        states=states_of(status), since=first, until=last, error=error, key=key_of(key),
    )  # fmt: skip
    start = None if after is None else Cursor.parse(after)
    page, others = wait_for(_list(settings_of(), loaded.service, wanted, start, limit))
    if as_json:
        print_json({"letters": [plain(each) for each in page.letters], "after": page.after and str(page.after)})
    else:
        print_page(page)
    say_what_is_not_shown(loaded, job, 0 if status else others)


@letter_commands.command(
    "stats",
    epilog=examples(
        "tidegate dlq stats --app shop.app:app",
        "tidegate dlq stats --job ledger --status any --since 7d --json",
    ),
)
def stats_command(
    job: JobNames = None,
    reason: ReasonName = None,
    fingerprint: Fingerprint = None,
    type_name: TypeName = None,
    tenant: Tenant = None,
    brand: Brand = None,
    since: Since = None,
    until: Until = None,
    status: Status = None,
    error: ErrorText = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many groups.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters by job, reason and fingerprint, the largest group first, each with a sample."""
    loaded = load_app(app)
    first, last = span_of(since, until)
    wanted = LetterFilter(
        jobs=job, reason=reason, fingerprint=fingerprint, event_type=type_name, tenant=tenant, brand=brand,
        states=states_of(status), since=first, until=last, error=error, key=key_of(key),
    )  # fmt: skip
    stats, others = wait_for(_stats(settings_of(), loaded.service, wanted, limit))
    if as_json:
        print_json(asdict(stats))
    else:
        print_stats(stats)
    say_what_is_not_shown(loaded, job, 0 if status else others)


@letter_commands.command(
    "show",
    epilog=examples(
        "tidegate dlq show 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1",
        "tidegate dlq show 6f1d6f0e-5a0b-5b0c-9d3e-7469646567a1 --payload   [dim]# needs a token; is audited[/dim]",
    ),
)
def show_command(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its id.")],
    payload: Annotated[
        bool, typer.Option("--payload", help="Also key, value and headers: needs permission dlq:read-payload.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of a dead letter; what is in it only with --payload."""
    service = load_app(app).service
    shown = wait_for(_show(settings_of(), service, letter_id(letter), with_payload=payload))
    if as_json:
        print_json(plain_details(shown))
    else:
        typer.echo("\n".join(told(shown)))


letter_commands.command("edit", epilog=EDIT_EXAMPLES)(edit_command)
letter_commands.command("erase", epilog=ERASE_EXAMPLES)(erase_command)
letter_commands.command("import", epilog=IMPORT_EXAMPLES)(import_command)
letter_commands.command("replay", epilog=REPLAY_EXAMPLES)(replay_command)
letter_commands.command("discard", epilog=DISCARD_EXAMPLES)(discard_command)
letter_commands.command("runs", epilog=RUNS_EXAMPLES)(runs_command)
letter_commands.command("stop", epilog=STOP_EXAMPLES)(stop_command)
letter_commands.command("approve", epilog=APPROVE_EXAMPLES)(approve_command)


async def _list(
    settings: Settings, service: str, wanted: LetterFilter, after: Cursor | None, limit: int
) -> tuple[LetterPage, int]:
    """The page, and how many more of that kind nobody has decided about."""
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        page = await list_letters(connection, service, wanted, after=after, limit=limit)
        return page, await _others(connection, service, wanted)


async def _stats(settings: Settings, service: str, wanted: LetterFilter, limit: int) -> tuple[LetterStats, int]:
    """The groups, and how many more of that kind nobody has decided about."""
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        stats = await letter_stats(connection, service, wanted, limit=limit)
        return stats, await _others(connection, service, wanted)


async def _others(connection: Connection, service: str, wanted: LetterFilter) -> int:
    states = [state for state in UNRESOLVED if state not in wanted.states]
    return (await letter_stats(connection, service, replace(wanted, states=states), limit=1)).all_letters


async def _show(settings: Settings, service: str, letter: UUID, *, with_payload: bool) -> Shown:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        if not with_payload:
            return Shown(await find_letter(connection, service, letter), None)
        details = await read_letter(connection, service, letter)
        return Shown(details, await read_payload(connection, await actor_of(settings, connection), details))
