"""The shop as this story needs it: its jobs by the clock come every few seconds, and a correction takes its time."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from examples.shop.app import shop
from examples.shop.reconciliation.corrections import Corrections
from examples.shop.reconciliation.differences import CorrectAccount
from examples.shop.scopes import SCOPES
from tidegate import App, Context, Every, Scope, handle

RECONCILIATION, EXPORTS, CATALOGUE = "nightly-reconciliation", "expired-exports", "disc-catalogue"

# Tenants who have never asked for an export: a run of each comes to nothing, and has to be claimed all the same.
_QUIET = [Scope(f"quiet-{number}", "vinyl") for number in range(12)]
_CORRECTION_SECONDS = 0.1  # a run of twenty has a middle to be killed in


class SlowCorrections(Corrections):
    """Each of them takes a while."""

    async def correct(self, command: CorrectAccount, ctx: Context[Any]) -> None:
        await super().correct(command, ctx)
        await asyncio.sleep(_CORRECTION_SECONDS)


def demo_shop(prefix: str = "") -> App:
    """The reconciliation runs when it is asked for: the story has to know when."""
    today = shop(prefix)
    slow = handle(CorrectAccount, SlowCorrections(f"{prefix}shop.ledger-corrections").correct)
    handlers = [slow if each.command is CorrectAccount else each for each in today.handlers]
    return replace(today, clock_jobs=_often(today), handlers=handlers)


def _often(today: App) -> Sequence[Any]:
    at_once: dict[str, Any] = {"jitter": timedelta(0)}
    told: dict[str, dict[str, Any]] = {
        RECONCILIATION: {"trigger": None, "freshness_sla": None},
        EXPORTS: {"trigger": Every(timedelta(seconds=2)), "scopes": [*SCOPES, *_QUIET]},
        CATALOGUE: {"trigger": Every(timedelta(seconds=4))},
    }
    return [replace(job, **at_once | told[job.code]) if job.code in told else job for job in today.clock_jobs]


app = demo_shop(os.environ.get("SHOP_PREFIX", ""))
