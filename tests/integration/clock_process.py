"""A process that runs the tests' job by the clock, slowly, until it is killed: `clock_process.py DSN HEARTBEAT`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from tests.integration.clockwork import Workshop, minutely
from tidegate import Context
from tidegate.jobs.clockwork.host import Pace
from tidegate_kernel.postgres import open_pool

ITEM_SECONDS = 0.2
HANDLER_TIMEOUT = timedelta(seconds=2)


async def slow(_: str, __: Context[None]) -> None:
    await asyncio.sleep(ITEM_SECONDS)


async def main(dsn: str, heartbeat: float) -> None:
    async with open_pool(dsn, size=4) as pool:
        shop = Workshop(pool, on_order=slow)
        shop.clock.move(minutes=1)
        job = minutely(handler_timeout=HANDLER_TIMEOUT)
        host = await shop.host(job, holder="pod-0", pace=Pace(heartbeat=timedelta(seconds=heartbeat)))
        await host.run(shop.stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
