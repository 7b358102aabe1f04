"""Asks the checker: a process of its own that shares nothing with this one."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from examples.shop.demo.place import Place, TrialFailed


async def checked(place: Place, *arguments: str, orders: int | None) -> dict[str, Any]:
    """Returns its verdict about the first `orders` purchases, None: all. Raises TrialFailed if it has none."""
    limit = [] if orders is None else ["--orders", str(orders)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.check_shop", "--prefix", place.prefix, "--json", *limit, *arguments),
        env=place.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    if process.returncode not in (0, 1) or not printed:
        raise TrialFailed(f"the checker ended with {process.returncode}:\n{errors.decode()[-2000:]}")
    verdict: dict[str, Any] = json.loads(printed)
    return verdict
