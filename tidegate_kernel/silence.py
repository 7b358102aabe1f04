"""A connection whose other end is gone without a word is given up in seconds, not when the kernel is tired of it."""

from __future__ import annotations

import socket
from typing import Any

# A network that is away for longer costs a transaction, which is made again. The kernel by itself sends for a quarter
# of an hour what nobody acknowledges, and would wait for an answer for ever.
_UNACKNOWLEDGED_MS = 10_000
_QUIET_SECONDS = 5
_BETWEEN_PROBES_SECONDS = 2
_PROBES = 3
_TCP_OPTIONS = {
    "TCP_USER_TIMEOUT": _UNACKNOWLEDGED_MS,
    "TCP_KEEPIDLE": _QUIET_SECONDS,
    "TCP_KEEPINTVL": _BETWEEN_PROBES_SECONDS,
    "TCP_KEEPCNT": _PROBES,
}


def give_up_when_silent(connection: Any) -> None:
    """The kernel asks the other end of asyncpg's `connection` whether it is there, and breaks it if it is not."""
    connected = connection._transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):  # not every system has them all
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
