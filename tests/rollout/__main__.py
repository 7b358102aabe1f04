"""`make rehearse-rollout`: processes play the chart's pods, and are rolled under load on real Kafka and Postgres.

Exit 0 if nothing was lost or doubled and no partition rested for longer than promised, else 1; 2 without Helm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from tests.rollout.chart import NoHelm, read_workload
from tests.rollout.measure import AIM_GAP_SECONDS, MOST_GAP_SECONDS, Rolled
from tests.rollout.rehearsal import Servers, rehearse
from tidegate.testing.databases import database_template

_VARIANTS = {
    "deployment": ("worker.staticMembership=false",),
    "static": ("worker.staticMembership=true",),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rollout", description=__doc__)
    parser.add_argument("--variant", choices=_VARIANTS, action="append", help="default: all; may be repeated")
    parser.add_argument("--rate", type=float, default=800.0, help="records a second")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="a JSON array instead of lines")
    arguments = parser.parse_args()
    names = arguments.variant or list(_VARIANTS)
    try:
        workloads = [read_workload(*_VARIANTS[name], f"worker.replicas={arguments.replicas}") for name in names]
    except NoHelm as error:
        print(error, file=sys.stderr)
        return 2
    rolls, bootstrap = list[Rolled](), os.environ["TIDEGATE_KAFKA_BOOTSTRAP"]
    with database_template() as template:
        for workload in workloads:
            with template.copied() as dsn:
                rolls.append(asyncio.run(rehearse(workload, rate=arguments.rate, at=Servers(bootstrap, dsn))))
            if not arguments.json:
                print(*_lines(rolls[-1]), sep="\n", flush=True)
    if arguments.json:
        print(json.dumps([roll.as_dict() for roll in rolls], indent=2))
    return 1 if any(roll.failures for roll in rolls) else 0


def _lines(rolled: Rolled) -> Sequence[str]:
    promise = f"promised {MOST_GAP_SECONDS:.0f} s, aim {AIM_GAP_SECONDS:.0f} s"
    gaps = f"{rolled.longest_gap:.2f} s, before {rolled.longest_gap_before:.2f} s"
    fate = f"lost {rolled.lost}, effects doubled {rolled.doubled}, handled twice {rolled.repeated}"
    return [
        f"{rolled.workload}: rolled in {rolled.seconds:.1f} s; the group was dealt anew {rolled.generations} times",
        f"  longest gap of a partition {gaps} ({promise})",
        f"  {rolled.produced} records: {fate}",
        *(f"  FAILED: {failure}" for failure in rolled.failures),
    ]


if __name__ == "__main__":
    sys.exit(main())
