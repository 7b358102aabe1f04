"""`python -m examples.shop.demo_jobs`: the story, its table, and an exit code that tells whether all is as it must be.

DEMO_ORDERS=n sends the first n purchases (1,200); DEMO_JSON=file writes the report there;
DEMO_SABOTAGE=drop|double|stale spoils one effect before the check.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from examples.shop.demo.ending import carried_out
from examples.shop.demo.place import Place
from examples.shop.demo.sabotage import Sabotage
from examples.shop.demo_jobs.report import print_report
from examples.shop.demo_jobs.trial import Options, run_trial


def main() -> int:
    """Runs the story; returns 0 if nothing is wrong, 1 if something is. Ends as `carried_out`."""
    report, place = carried_out("demo-jobs", run_trial(_options()))
    if file := os.environ.get("DEMO_JSON"):
        Path(file).write_text(json.dumps(report.as_json(), indent=2))
    print_report(report, _next_commands(place))
    return 1 if report.failures else 0


def _options() -> Options:
    sabotage = os.environ.get("DEMO_SABOTAGE")
    return Options(
        orders=int(os.environ.get("DEMO_ORDERS", Options.orders)), sabotage=Sabotage(sabotage) if sabotage else None
    )


def _next_commands(place: Place) -> list[str]:
    return [
        f"source {place.env_file}",
        ".venv/bin/tidegate jobs runs nightly-reconciliation",
        ".venv/bin/tidegate jobs show disc-catalogue",
        ".venv/bin/tidegate audit list",
        "DEMO_SABOTAGE=double make demo-jobs",
    ]


if __name__ == "__main__":
    sys.exit(main())
