"""An export is made: its row before its file, so that no file is ever without a row."""

import asyncio
from uuid import UUID, uuid4

from asyncpg import Connection
from asyncpg.pool import PoolConnectionProxy

from examples.shop.exports.files import ExportFiles
from tidegate import Scope

_BEGIN = """
INSERT INTO export (tenant, brand, id, customer_id)
VALUES ($1, $2, $3, $4)
"""
_FINISH = "UPDATE export SET is_ready = true WHERE tenant = $1 AND brand = $2 AND id = $3"


async def make_export(
    connection: Connection | PoolConnectionProxy, files: ExportFiles, scope: Scope, *, customer_id: str, content: bytes
) -> UUID:
    """The export is ready to be fetched; returns its id. `connection` is in no transaction.

    One that breaks off in between leaves a row that is not ready, and perhaps half a file: it goes with the others
    after its time.
    """
    export = uuid4()
    await connection.execute(_BEGIN, scope.tenant, scope.brand, export, customer_id)
    await asyncio.to_thread(files.write, export, content)
    await connection.execute(_FINISH, scope.tenant, scope.brand, export)
    return export
