"""`tidegate tokens`: who may change something, and within which scope."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from tidegate.commands.durations import duration
from tidegate.commands.options import (
    JsonOption,
    actor_of,
    anybody,
    examples,
    print_json,
    print_table,
    say,
    settings_of,
    wait_for,
)
from tidegate.migrations.revisions import require_schema
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.permissions import Role
from tidegate_kernel.postgres import connect
from tidegate_kernel.settings import Settings
from tidegate_kernel.token_deeds import Grant, bootstrap_token, create_token, revoke_token
from tidegate_kernel.tokens import Token, TokenState, list_tokens

token_commands = typer.Typer(
    name="tokens", help="Access tokens: who may change something, and within which scope.", no_args_is_help=True
)

_CREATE_EXAMPLES = examples(
    "tidegate tokens create platform --bootstrap         [dim]# the first one ever: admin, for everything[/dim]",
    "tidegate tokens create anna --role operator --expires 90d",
    "tidegate tokens create acme-support --role operator --tenant acme",
    'export TIDEGATE_TOKEN="$(tidegate tokens create anna --role operator)"',
)


@token_commands.command("create", epilog=_CREATE_EXAMPLES)
def create_command(
    name: Annotated[str, typer.Argument(help="Whose it is: a person, a team, a pipeline. The audit shows it.")],
    role: Annotated[Role | None, typer.Option(help="What it may do; docs/access.md has the table.")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Only for this tenant; may be repeated.")] = None,
    brand: Annotated[list[str] | None, typer.Option(help="Only for this brand; may be repeated.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="90d", help="How long it lasts; without it, until revoked.")
    ] = (None),
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Make the first token ever, an admin; needs no token.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, once: it is stored as a digest only. Needs an admin token, but for --bootstrap."""
    if bootstrap and (role not in (None, Role.ADMIN) or tenant or brand or expires):
        raise Misconfigured("--bootstrap makes an admin token for everything that does not expire; leave the rest out")
    if not bootstrap and role is None:
        raise Misconfigured(f"say what the token may do: --role {', '.join(Role)}")
    grant = Grant(
        name,
        role or Role.ADMIN,
        frozenset(tenant) if tenant else None,
        frozenset(brand) if brand else None,
        duration("--expires", expires) if expires else None,
    )
    text = wait_for(_create(settings_of(), grant, is_first=bootstrap))
    if as_json:
        print_json({"name": name, "role": grant.role, "token": text})
    else:
        say(f"token {name!r} with role {grant.role}; this is the only time it is shown:")
        typer.echo(text)


@token_commands.command("list", epilog=examples("tidegate tokens list", "tidegate tokens list --all"))
def list_command(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are expired or revoked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the tokens there are, without their texts, which nobody has."""
    tokens = [t for t in wait_for(_list(settings_of())) if everything or t.state is TokenState.VALID]
    if as_json:
        print_json([{**t._asdict(), "tenants": _names(t.tenants), "brands": _names(t.brands)} for t in tokens])
        return
    columns = ["name", "role", "tenants", "brands", "state", "expires", "made", "by", "id"]
    print_table(columns, [_row(token) for token in tokens])


@token_commands.command(
    "revoke", epilog=examples("tidegate tokens revoke anna --reason 'left the team' --yes", "tidegate tokens list")
)
def revoke_command(
    name: Annotated[str, typer.Argument(help="Name or id.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also the last admin token for everything.")] = False,
    as_json: JsonOption = False,
) -> None:
    """A token opens nothing any more, from the next command on. Needs an admin token."""
    if not yes:
        raise Misconfigured(f"token {name!r} would open nothing any more, and never again; add --yes to revoke it")
    token = wait_for(_revoke(settings_of(), name, reason, force=force))
    if as_json:
        print_json({"name": token.name, "id": token.id, "state": TokenState.REVOKED})
    else:
        typer.echo(f"revoked token {token.name!r} ({token.role})")


async def _create(settings: Settings, grant: Grant, *, is_first: bool) -> str:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        if is_first:
            return await bootstrap_token(connection, anybody(), grant.name)
        return await create_token(connection, await actor_of(settings, connection), grant)


async def _list(settings: Settings) -> Sequence[Token]:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        return await list_tokens(connection)


async def _revoke(settings: Settings, name: str, reason: str, *, force: bool) -> Token:
    dsn = settings.postgres_dsn.get_secret_value()
    await require_schema(dsn)
    async with connect(dsn) as connection:
        actor = await actor_of(settings, connection)
        return await revoke_token(connection, actor, name, reason=reason, even_the_last=force)


def _row(token: Token) -> list[str]:
    return [
        escape(token.name),
        token.role,
        escape(", ".join(_names(token.tenants) or ["all"])),
        escape(", ".join(_names(token.brands) or ["all"])),
        token.state,
        "never" if token.expires_at is None else _told(token.expires_at),
        _told(token.created_at),
        escape(token.created_by),
        str(token.id),
    ]


def _names(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _told(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%SZ}"
