"""The small service after a deployment that takes negative payments, too: what a replay finds."""

import asyncio
import os
import signal
from pathlib import Path

from small import (  # type: ignore[import-not-found]  # commands are typed in this folder
    PREFIX,
    KeepPayment,
)
from small import app as small_app

from tidegate import App, Context, Rejected, handle

# The payment whose handling ends the process, as kill -9 would.
KILLER = os.environ.get("MENDED_KILLER")
# Payments that fail as ever.
REFUSED = os.environ.get("MENDED_REFUSED", "").split(",")
SLOWNESS_SECONDS = float(os.environ.get("MENDED_SLOWNESS_SECONDS", "0"))


async def keep_any_payment(command: KeepPayment, ctx: Context[None]) -> None:
    if command.payment == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(SLOWNESS_SECONDS)
    if command.payment in REFUSED:
        raise Rejected("not this one")
    await ctx.db.execute("INSERT INTO payment (id, cents) VALUES ($1, $2)", command.payment, command.cents)


app = App(
    service=PREFIX,
    owner="payments-team",
    jobs=small_app.jobs,
    handlers=[handle(KeepPayment, keep_any_payment)],
    migrations=Path(__file__).with_name("migrations"),
)
