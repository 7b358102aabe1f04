"""A process that synchronises the shop's catalogue until it is killed: `provider_process.py DSN URL KEYS_FILE`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from tests.integration.disc_company import calling, catalogue_job
from tidegate.jobs.clockwork.host import Pace
from tidegate_kernel.postgres import open_pool


async def main(dsn: str, url: str, keys_file: str) -> None:
    async with open_pool(dsn, size=4) as pool, calling(pool, dsn, url, Path(keys_file)) as shop:
        shop.clock.move(minutes=20)
        host = await shop.host(catalogue_job(), pace=Pace(heartbeat=timedelta(seconds=2)))
        await host.run(shop.stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
