"""What a projection function returns: writes that carry their own version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

MAX_VERSION = 2**63 - 1


class Upsert(msgspec.Struct, frozen=True, gc=False):
    """Document `id` equals `document`, unless the sink already holds a newer version.

    `version` comes from the event (aggregate version, source sequence, time), never from the offset: 0 … 2**63 - 1.
    `document` is a mapping, or any object msgspec can encode; for ClickHouse its fields are the table's columns.
    """

    id: str
    version: int
    document: Mapping[str, Any] | msgspec.Struct


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Document `id` is gone as of `version`; a late older upsert cannot bring it back."""

    id: str
    version: int


Write: TypeAlias = Upsert | Delete
