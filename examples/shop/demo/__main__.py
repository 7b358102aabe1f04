"""`python -m examples.shop.demo`: the trial, its report, and an exit code that tells whether all is as it must be.

DEMO_ORDERS=n sends the first n purchases only, DEMO_RATE=n records a second; DEMO_JSON=file writes the report there;
DEMO_SABOTAGE=drop|double|stale spoils one effect before the check.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import asyncpg

from examples.shop.demo.ending import carried_out
from examples.shop.demo.letter import one_letter
from examples.shop.demo.place import Place
from examples.shop.demo.report import Report, print_report
from examples.shop.demo.sabotage import Sabotage
from examples.shop.demo.trial import Options, run_trial


def main() -> int:
    """Runs the trial; returns 0 if nothing is wrong, 1 if something is. Ends as `carried_out`."""
    report, place = carried_out("demo", run_trial(_options()))
    letter = asyncio.run(_letter(place))
    if file := os.environ.get("DEMO_JSON"):
        Path(file).write_text(json.dumps(report.as_json(), indent=2))
    print_report(report, letter, _next_commands(place, report))
    return 1 if report.failures else 0


def _options() -> Options:
    orders, sabotage = os.environ.get("DEMO_ORDERS"), os.environ.get("DEMO_SABOTAGE")
    return Options(
        orders=int(orders) if orders else None,
        per_second=float(os.environ.get("DEMO_RATE", Options.per_second)),
        sabotage=Sabotage(sabotage) if sabotage else None,
    )


async def _letter(place: Place) -> str:
    connection = await asyncpg.connect(place.environment["TIDEGATE_POSTGRES_DSN"])
    try:
        return await one_letter(connection)
    finally:
        await connection.close()


def _next_commands(place: Place, report: Report) -> list[str]:
    limit = f" --orders {report.orders}" if report.orders < 69_659 else ""
    return [
        f"source {place.env_file}",
        ".venv/bin/tidegate status",
        ".venv/bin/tidegate run order-search --backfill --from-beginning   # all of it again: nothing changes",
        f".venv/bin/python -m examples.check_shop --prefix {place.prefix}{limit}",
        "DEMO_SABOTAGE=stale make demo",
    ]


if __name__ == "__main__":
    sys.exit(main())
