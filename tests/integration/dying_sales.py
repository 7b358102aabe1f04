"""`python dying_sales.py CLICKHOUSE POSTGRES TABLE`: sells eight, applies six in one range, and is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pydantic import SecretStr

from projections.clickhouse import ClickHouse
from projections.clickhouse_connection import Connection
from projections.stable import StableSink
from tests.integration.counted import COLUMNS, TOPIC_ID, Counted, Meddling
from tidegate_kernel.postgres import open_pool
from tidegate_kernel.settings import Settings


async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(clickhouse: str, database: str, table: str) -> None:
    settings = Settings(clickhouse_url=clickhouse, postgres_dsn=SecretStr(database))
    declared = ClickHouse(
        table=table, columns=COLUMNS, order_by=("event",), partition_by="toYYYYMM(day)", stable_batches=True
    )
    async with open_pool(database, size=2) as pool, declared.open(settings) as sink:
        assert isinstance(sink, StableSink)
        sales = Counted(replace(declared), settings, pool, Connection(settings))
        sales.broker.create_topic("orders")
        sales.broker._topics["orders"].id = TOPIC_ID
        sales.sell(*range(1, 9))
        dying = Meddling(sink)
        dying.after = die
        parts = await sales.parts(dying, batch_size=6)
        await parts.pipeline.handle(await sales.batch(parts, 6))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
