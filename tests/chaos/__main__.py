"""`make chaos`: a run of any length on servers of its own. Exit 0 if nothing was lost, doubled or stale, else 1."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.chaos import servers
from tests.chaos.faults import QUICK, Fault
from tests.chaos.run import Plan, Report, fresh_folder, run
from tests.chaos.scene import ROOT, scene

_FOLDER = ROOT / ".state" / "chaos"
_RATE = 600.0
# The producer cannot tell what Kafka is not there to hear: a short run has a larger share of outages.
_LEAST_PER_MINUTE = 20_000.0


async def _run(plan: Plan, rate: float) -> Report:
    folder = fresh_folder(_FOLDER)
    async with scene(folder, seed=plan.seed, rate=rate) as stage:
        return await run(stage, plan)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=float, default=_RATE, help="records a second")
    parser.add_argument("--least-per-minute", type=float, default=_LEAST_PER_MINUTE)
    parser.add_argument("--quick", action="store_true", help="only kinds of fault that heal within seconds")
    arguments = parser.parse_args()
    if missing := servers.missing():
        print("the chaos suite starts servers of its own and needs: " + "; ".join(missing), file=sys.stderr)
        return 2
    faults = QUICK if arguments.quick else tuple(Fault)
    plan = Plan(arguments.seconds, arguments.seed, faults, least_per_minute=arguments.least_per_minute)
    print(f"seed {plan.seed}: {plan.seconds:.0f} s of faults", flush=True)
    report = asyncio.run(_run(plan, arguments.rate))
    print(*report.lines(), sep="\n")
    if report.is_good:
        servers.wipe(_FOLDER)
    else:
        print(f"logs of servers and workers, the producer's log and the strikes: {_FOLDER}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
