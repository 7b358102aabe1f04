"""One run of one contestant, in a process of its own: `python -m bench.contestant '{…}'` prints what it measured."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import uvloop

from bench import clickhouse, elasticsearch, on_stub
from bench.plan import Plan, Result, result_of
from bench.postgres_share import postgres_share, with_share
from bench.redelivery import redeliver
from bench.replay import replay
from tidegate_kernel.settings import Settings, read_settings

Contestant = Callable[[Plan, Settings], Awaitable[Result]]
"""Runs until its events are through the sink, and tells what that took."""


async def _redelivery(plan: Plan, settings: Settings) -> Result:
    return result_of(await redeliver(settings, service=plan.service, topic=plan.topic, events=plan.events))


async def _replay(plan: Plan, settings: Settings, *, is_parking: bool) -> Result:
    read = await replay(settings, service=plan.service, letters=plan.events, is_parking=is_parking)
    return with_share(result_of(read), await postgres_share(settings))


_CONTESTANTS: Mapping[str, Contestant] = {
    **on_stub.CONTESTANTS,
    **elasticsearch.CONTESTANTS,
    **clickhouse.CONTESTANTS,
    "redelivery": _redelivery,
    "replay": partial(_replay, is_parking=True),
    "replay without order": partial(_replay, is_parking=False),
}


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    settings = read_settings(http_port=0, lanes=plan.lanes)
    loops: dict[str, Callable[[], Any]] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    with asyncio.Runner(loop_factory=loops[plan.loop]) as runner:
        result = runner.run(_run(plan, settings))
    print(msgspec.json.encode(result).decode())


async def _run(plan: Plan, settings: Settings) -> Result:
    return await _CONTESTANTS[plan.contestant](plan, settings)


if __name__ == "__main__":
    main()
