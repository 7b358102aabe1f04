"""Which migrations are meant, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """Which migrations: those for before the new code rolls, those for after, or all."""

    PRE = "pre"
    POST = "post"
    ALL = "all"


class Migrated(NamedTuple):
    """What was done, or what is missing, by name."""

    migrations: Sequence[str]
    service_migrations: Sequence[str] = ()
    sinks: Sequence[str] = ()
    grants: Sequence[str] = ()

    @property
    def is_anything(self) -> bool:
        return any(self)
