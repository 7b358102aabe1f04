"""A connection that was closed under the client is a broken one, whatever the event loop says to who writes on it.

The client expects an OSError there. uvloop raises RuntimeError ("the handler is closed") between the moment at which a
connection breaks and the one at which it is told so, and what the client does not expect ends its tasks for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiokafka.errors import KafkaConnectionError, KafkaError


def guard_connections(client: Any) -> None:
    """Whatever connection `client` uses from now on breaks in the way that it expects. For this one client only."""
    get_connection, bootstrap = client._get_conn, client.bootstrap

    async def get_guarded(node: Any, **options: Any) -> Any:
        try:
            with told_as_broken():
                connection = await get_connection(node, **options)
        except KafkaConnectionError:
            # It broke while it was being opened: as the client does where it cannot connect.
            client.force_metadata_update()
            return None
        if connection is not None:
            guard(connection)
        return connection

    async def bootstrap_guarded() -> None:
        with told_as_broken():
            await bootstrap()

    client._get_conn, client.bootstrap = get_guarded, bootstrap_guarded


def guard(connection: Any) -> None:
    """Writing on `connection` after it was closed raises ConnectionResetError. Idempotent."""
    if connection._writer is not None and not isinstance(connection._writer, _Writer):
        connection._writer = _Writer(connection._writer)


@contextmanager
def told_as_broken() -> Iterator[None]:
    """Inside, a connection that is not guarded yet may break too: raises KafkaConnectionError then."""
    try:
        yield
    except KafkaError:
        raise  # a RuntimeError too, to its authors
    except RuntimeError as error:
        raise KafkaConnectionError(f"connection broken: {error}") from error


class _Writer:
    """The stream writer of a connection."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, octets: bytes) -> None:
        try:
            self._writer.write(octets)
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
