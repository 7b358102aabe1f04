"""What the shop's handlers need beside Postgres: opened once a process, handed out as `ctx.deps`."""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.shop.catalogue.supplier import DiscCompany, disc_company
from examples.shop.exports.files import ExportFiles


@dataclass(frozen=True, slots=True)
class Shop:
    """`ctx.deps` of the shop's handlers."""

    exports: ExportFiles
    discs: DiscCompany


def export_files() -> ExportFiles:
    """The files in `SHOP_EXPORTS`; unless that is set, in a directory for trying things out."""
    return ExportFiles(Path(os.environ.get("SHOP_EXPORTS") or Path(tempfile.gettempdir(), "shop-exports")))


@asynccontextmanager
async def shop_resources() -> AsyncIterator[Shop]:
    """Yields what handlers need. A directory that is away holds up the jobs that need it, and no other."""
    exports = export_files()
    exports.make_first()
    async with disc_company() as discs:
        yield Shop(exports, discs)
