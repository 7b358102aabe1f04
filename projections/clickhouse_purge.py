"""Tombstones leave a table when nothing older can come any more; which those are is decided elsewhere.

A delete is no transaction: it comes to one part after the other, and a reader sees some with it and some without. So
the rows that a tombstone hides go first, and the tombstone when there is nothing left that it hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from projections.documents import DELETED, DELETED_AT

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

    from projections.clickhouse_table import VersionedTable

# Each is answered when all parts, on all replicas, are without the rows: the second one must not overtake the first.
# The text holds up to a thousand keys three times; the server's default is a quarter of a megabyte.
_SETTINGS = {
    "lightweight_deletes_sync": "2",
    "mutations_sync": "2",
    "lightweight_delete_mode": "alter_update",
    "max_query_size": str(64 * 1024 * 1024),
}
# What readers see, whatever their profile says: see the view.
_AS_READERS = "do_not_merge_across_partitions_select_final = 0, optimize_move_to_prewhere_if_final = 0"
# A literal ends at a NUL, or is another text, unless these are spelled out.
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\0": "\\0"})


async def purge_tombstones(client: AsyncClient, table: VersionedTable, *, before: datetime, most: int) -> int:
    """Up to `most` keys are without the tombstones written before then and all that is older; returns how many keys.

    Newer rows of these keys stay, whenever they came; so do tombstones without a time. Killed in between, the
    tombstones are there, and it can be called again. Raises the client's errors.
    """
    chunk = _Chunk(table, int(before.timestamp()), {})
    found = (await client.query(chunk.search(most))).result_rows
    if not found:
        return 0
    chunk = _Chunk(table, chunk.before, {key: version for key, version in found})  # noqa: C416  # rows are no pairs
    # As a rule merges have left nothing but the tombstone, unless table partitions keep the rows apart.
    if (await client.query(chunk.count_hidden(), settings=_known(client))).result_rows[0][0]:
        shown = (await client.query(chunk.shown_beside(), settings=_known(client))).result_rows
        await client.command(chunk.delete_hidden(key for (key,) in shown), settings=_known(client))
    await client.command(chunk.delete_tombstones(), settings=_known(client))
    return len(chunk.versions)


def _known(client: AsyncClient) -> dict[str, str]:
    return {name: value for name, value in _SETTINGS.items() if name in client.server_settings}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Statements about keys, as texts, and the versions of their tombstones written before `before` (Unix seconds).

    Keys stand in the statements themselves: a subquery would be asked again for each part, and see other rows then.
    """

    table: VersionedTable
    before: int
    versions: Mapping[str, int]

    # Names are plain identifiers, checked where they are declared; all else is a number or quoted.

    def search(self, most: int) -> str:
        """Read in the order of the table, so that it ends early. Only keys that their text stands for without doubt:
        a time that comes twice when clocks are set back has one text."""
        key = self._key
        return (
            f"SELECT toString({key}), {self._version} FROM {self._source} "  # noqa: S608
            f"WHERE {self._is_old_tombstone} AND CAST(toString({key}), {_quoted(self._key_type)}) = {key} "
            f"ORDER BY {key}, {self._version} DESC LIMIT 1 BY {key} LIMIT {most:d} SETTINGS final = 0"
        )

    def count_hidden(self) -> str:
        is_hidden = f"({self._is_older} OR ({self._is_as_old} AND {DELETED} = 0))"
        return f"SELECT count() FROM {self._source} WHERE {self._of_keys} AND {is_hidden} SETTINGS final = 0"  # noqa: S608

    def shown_beside(self) -> str:
        """Keys whose document has its tombstone's version, and is shown all the same: it was written later."""
        return (
            f"SELECT toString({self._key}) FROM {self._source} FINAL "  # noqa: S608
            f"WHERE {self._of_keys} AND {self._is_as_old} AND {DELETED} = 0 SETTINGS {_AS_READERS}"
        )

    def delete_hidden(self, shown: Iterable[str]) -> str:
        is_shown = f"has(CAST({_array(shown)}, 'Array(String)'), toString({self._key}))"
        is_tie = f"{self._is_as_old} AND {DELETED} = 0 AND NOT {is_shown}"
        return f"DELETE FROM {self._source} WHERE {self._of_keys} AND ({self._is_older} OR ({is_tie}))"  # noqa: S608

    def delete_tombstones(self) -> str:
        """Not one of the same version that was written again since: it counts from then on."""
        is_ours = f"{self._is_older} OR ({self._is_as_old} AND {self._is_old_tombstone})"
        return f"DELETE FROM {self._source} WHERE {self._of_keys} AND ({is_ours})"  # noqa: S608

    @property
    def _source(self) -> str:
        return f"`{self.table.physical}`"

    @property
    def _key(self) -> str:
        return f"`{self.table.order_by[0]}`"

    @property
    def _key_type(self) -> str:
        return self.table.columns[self.table.order_by[0]]

    @property
    def _version(self) -> str:
        return f"`{self.table.version_column}`"

    @property
    def _is_old_tombstone(self) -> str:
        # The column holds whole seconds: this one and what is left of it are as young as `before`.
        return f"{DELETED} = 1 AND {DELETED_AT} > {_moment(0)} AND {DELETED_AT} < {_moment(self.before)}"

    @property
    def _of_keys(self) -> str:
        """By the sorting key, so that parts without these keys are passed over."""
        return f"{self._key} IN (CAST({_array(self.versions)}, {_quoted(f'Array({self._key_type})')}))"

    @property
    def _is_older(self) -> str:
        return f"{self._version} < {self._tombstones_version}"

    @property
    def _is_as_old(self) -> str:
        return f"{self._version} = {self._tombstones_version}"

    @property
    def _tombstones_version(self) -> str:
        versions = ",".join(map(str, self.versions.values()))
        return (
            f"transform(toString({self._key}), {_array(self.versions)}, "
            f"CAST([{versions}], 'Array(UInt64)'), toUInt64(0))"
        )


def _moment(seconds: int) -> str:
    return f"toDateTime({max(seconds, 0):d}, 'UTC')"


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    return f"'{text.translate(_ESCAPES)}'"
