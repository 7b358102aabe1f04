"""The local stack's own access token, so that commands against it just work."""

from __future__ import annotations

from tidegate.commands.options import anybody
from tidegate_kernel.postgres import Connection, connect
from tidegate_kernel.settings import Settings
from tidegate_kernel.token_deeds import bootstrap_token
from tidegate_kernel.tokens import list_tokens

_NAME = "local-stack"


async def make_local_token(settings: Settings) -> str | None:
    """The database of this directory's stack has a token, kept beside its addresses for its owner only.

    Returns what to say where one was made; None where the database is another one, or has had tokens already.
    """
    try:
        from tidegate.stack.files import write_private
        from tidegate.stack.names import ServerName
        from tidegate.stack.state import StackFolder, default_folder, read_env
    except ModuleNotFoundError:
        return None  # without tidegate[dev] there is no stack
    folder = StackFolder(default_folder())
    dsn = settings.postgres_dsn.get_secret_value()
    if read_env(folder.env_file).get(ServerName.POSTGRES) != dsn:
        return None
    async with connect(dsn) as connection:
        text = await _first_token(connection)
    if text is None:
        return None
    write_private(folder.token_file, text + "\n")
    return f"made: token {_NAME!r} for this directory's commands, in {folder.token_file}"


async def _first_token(connection: Connection) -> str | None:
    # Asked first: a refusal at each `migrate` would be a row of the audit each time.
    if await list_tokens(connection):
        return None
    return await bootstrap_token(connection, anybody(), _NAME)
