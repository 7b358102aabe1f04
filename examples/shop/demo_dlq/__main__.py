"""`python -m examples.shop.demo_dlq`: the story, its report, and an exit code that tells whether all is as it must be.

DEMO_ORDERS=n sends the first n purchases only (3,000 or more), DEMO_RATE=n records a second; DEMO_JSON=file writes the
report there; DEMO_SABOTAGE=drop|double|stale spoils one effect before the check, unmended rolls the bug out again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from examples.shop.demo.ending import carried_out
from examples.shop.demo.place import Place
from examples.shop.demo_dlq.pickup import OPEN_ORDERS
from examples.shop.demo_dlq.report import Report, print_report
from examples.shop.demo_dlq.trial import Options, Spoilt, run_trial


def main() -> int:
    """Runs the story; returns 0 if nothing is wrong, 1 if something is. Ends as `carried_out`."""
    report, place = carried_out("demo-dlq", run_trial(_options()))
    if file := os.environ.get("DEMO_JSON"):
        Path(file).write_text(json.dumps(report.as_json(), indent=2))
    print_report(report, _next_commands(place, report))
    return 1 if report.failures else 0


def _options() -> Options:
    orders, sabotage = os.environ.get("DEMO_ORDERS"), os.environ.get("DEMO_SABOTAGE")
    return Options(
        orders=int(orders) if orders else None,
        per_second=float(os.environ.get("DEMO_RATE", Options.per_second)),
        sabotage=Spoilt(sabotage) if sabotage else None,
    )


def _next_commands(place: Place, report: Report) -> list[str]:
    limit = f" --orders {report.orders}" if report.orders < 69_659 else ""
    return [
        f"source {place.env_file}",
        f".venv/bin/tidegate dlq runs --run {report.run}" if report.run else ".venv/bin/tidegate dlq stats",
        ".venv/bin/tidegate audit list",
        f".venv/bin/python -m examples.check_shop --prefix {place.prefix}{limit} --recovered {OPEN_ORDERS}",
        "DEMO_SABOTAGE=unmended make demo-dlq",
    ]


if __name__ == "__main__":
    sys.exit(main())
