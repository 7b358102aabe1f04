"""`python -m bench`: measures, prints a table, and fails when a promise is not kept."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench.comparing import Effort
from bench.measures import MEASURES, PROMISED
from bench.report import Line, as_json, table
from bench.stage import Stage
from tidegate.commands.options import settings_of

_FEWEST_EVENTS = 10_000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "measures",
        nargs="*",
        metavar="MEASURE",
        help=f"{', '.join(MEASURES)}; if none is named: {', '.join(PROMISED)}",
    )
    parser.add_argument("--only", choices=list(MEASURES), action="append", default=[], help="as naming the measure")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each comparison")
    parser.add_argument("--events", type=int, default=300_000, help="events of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE, too")
    parser.add_argument(
        "--keep-topics", action="store_true", help="leave the filled topics for another benchmark today"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.measures if name not in MEASURES]:
        parser.error(f"no measure is called {unknown[0]!r}; there are {', '.join(MEASURES)}")
    if given.events < _FEWEST_EVENTS:
        parser.error(f"--events {given.events}: fewer than {_FEWEST_EVENTS:,} measure how a run starts, not its rate")
    return given


async def _measure(given: argparse.Namespace) -> dict[str, list[Line]]:
    stage = Stage(settings_of(), keeps_topics=given.keep_topics)
    found: dict[str, list[Line]] = {}
    async with stage.open():
        for name in [*given.measures, *given.only] or PROMISED:
            print(f"{name}: {(MEASURES[name].__doc__ or '').strip()}", flush=True)
            found[name] = list(await MEASURES[name](stage, Effort(given.rounds, given.events)))
    return found


def main() -> None:
    given = _arguments()
    found = asyncio.run(_measure(given))
    print(table(found))
    if given.json:
        given.json.write_text(as_json(found))
    missed = [line.what for lines in found.values() for line in lines if line.is_binding and not line.is_reached]
    if missed:
        sys.exit(f"bench: not reached: {'; '.join(missed)}")


main()
