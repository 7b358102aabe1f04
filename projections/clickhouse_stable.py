"""A ClickHouse sink for tables that feed materialized views: each range of records goes in once, under its own name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from uuid import uuid4

from projections.clickhouse_connection import RowsRefused
from projections.clickhouse_partitions import Row
from projections.clickhouse_sink import ClickHouseSink
from projections.sink import Applied
from tidegate_kernel.errors import Misconfigured, Transient


class StableClickHouseSink(ClickHouseSink):
    """The open sink; see `projections.stable.StableSink`. Blocks are never cut: a half would have another token."""

    async def apply(self, encoded: Sequence[Row]) -> Applied:
        """As any sink: called twice, both times count in views. What must not be repeated is a range, or a letter."""
        return await self.apply_range(encoded, f"tg:once:{uuid4()}")

    async def apply_range(self, encoded: Sequence[Row], name: str) -> Applied:
        """The rows are in, and in all views, once, however often it is called with that name.

        What the rows are has no part in it: it is the first call with the name that counts.
        """
        for partition, block in self._blocks(encoded).items():
            # The partition is part of the token: views would take the same token in another one for a repeat.
            token = f"{name}:{self._table.physical}:{_digest(partition)}"
            try:
                await self._insert_block(block, {"insert_deduplication_token": token})
            except RowsRefused as refusal:
                await self.check()
                raise Transient(
                    f"{refusal}; a stable batch is not cut, and waits until the table takes it"
                ) from refusal
        return Applied()

    async def reset(self) -> None:
        """Raises Misconfigured: what the views have counted stands in tables that are not ours."""
        raise Misconfigured(
            f"ClickHouse(table={self._table.view!r}): stable batches feed materialized views, whose tables would keep "
            "what they have counted; give the job a new code, and a table of a new name with views of its own"
        )


def _digest(partition: Hashable) -> str:
    """A partition's key may be long, or somebody's data: the token is in the server's log of statements."""
    return blake2b(repr(partition).encode(), digest_size=8).hexdigest()
