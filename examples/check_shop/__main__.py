"""Compares the shop's stores with the source: exit 0 if all is as it must be, else 1 with a sentence per difference."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from examples.check_shop.effects import ledger_differences, revenue_differences, search_differences, value_differences
from examples.check_shop.expected import (
    JOBS,
    LEDGER,
    POISON,
    SOURCE_CENTS,
    SOURCE_PURCHASES,
    Order,
    Poison,
    expected_claims,
    poison_reasons,
    read_orders,
)
from examples.check_shop.letters import MARK, Letters
from examples.check_shop.recovered import PARKED, recovered
from examples.check_shop.servers import Addresses, FoundRecord, Servers, connected

_SHOWN = 20
_LEDGER = "SELECT tenant, brand, customer_id, orders, cents FROM ledger"
_DIRTY = "SELECT count(*) AS keys FROM tidegate.dirty"
_CLAIMS = """
SELECT j.code, count(*) AS claimed
FROM tidegate.inbox AS i
JOIN tidegate.job AS j ON j.id = i.job
GROUP BY j.code
"""
_POSITIONS = """
SELECT j.code, p.partition, p.next_offset
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.topic = $1 AND p.run = 0
"""


@dataclass
class Verdict:
    """Figures as (what, expected, found), and one sentence for each difference."""

    figures: list[tuple[str, Any, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    dead_letters: dict[str, dict[str, int]] = field(default_factory=dict)

    def figure(self, what: str, expected: object, found: object) -> None:
        self.figures.append((what, expected, found))
        if expected != found:
            self.differences.append(f"{what}: expected {expected}, found {found}")


async def check(servers: Servers, prefix: str, limit: int | None, dead: int | None = None) -> Verdict:
    """Reads everything and compares it. `dead`: no poison was sent; so many sound orders were dead for a while."""
    verdict, orders = Verdict(), read_orders(limit)
    poison = POISON if dead is None else {}
    if limit is None:
        verdict.figure("purchases in the source", SOURCE_PURCHASES, len(orders))
        verdict.figure("cents in the source", SOURCE_CENTS, sum(order.cents for order in orders))
    await _check_ledger(verdict, servers, orders, poison)
    await _check_search(verdict, servers, orders, poison, alias=f"{prefix}orders")
    await _check_revenue(verdict, servers, orders, poison, view=f"{prefix}revenue".replace("-", "_"))
    await _check_values(verdict, servers, orders, poison, alias=f"{prefix}customer-value")
    topic, service = f"{prefix}shop.orders", f"{prefix}shop"
    sent = await servers.records(topic)
    if dead is None:
        await _check_letters(verdict, servers, sent, service=service)
    else:
        await _check_recovered(verdict, servers, sent, service=service, dead=dead)
    await _check_claims(verdict, servers, orders, poison)
    await _check_positions(verdict, servers, topic)
    return verdict


async def _check_ledger(verdict: Verdict, servers: Servers, orders: Sequence[Order], poison: Poison) -> None:
    rows = await servers.rows(_LEDGER)
    verdict.differences += ledger_differences(orders, rows, poison)
    accounts = [row for row in rows if not row["customer_id"].startswith("poison-")]
    verdict.figure("ledger: accounts", len({order.account for order in orders}), len(accounts))
    verdict.figure("ledger: customers", len({o.customer_id for o in orders}), len({r["customer_id"] for r in accounts}))
    verdict.figure("ledger: orders", len(orders), sum(row["orders"] for row in accounts))
    verdict.figure("ledger: cents", sum(order.cents for order in orders), sum(row["cents"] for row in accounts))


async def _check_search(
    verdict: Verdict, servers: Servers, orders: Sequence[Order], poison: Poison, *, alias: str
) -> None:
    documents = await servers.documents(alias, sorted_by="order_id")
    verdict.differences += search_differences(orders, documents, poison)
    kept = [order for order in orders if not order.is_cancelled]
    sound = [each for name, each in documents.items() if not name.startswith("poison-")]
    verdict.figure("search: documents", len(kept), len(sound))
    verdict.figure("search: cents", sum(o.cents for o in kept), sum(each["total_cents"] for each in sound))
    verdict.figure("search: amended", sum(o.is_amended for o in kept), sum(each["gift_wrapped"] for each in sound))


async def _check_revenue(
    verdict: Verdict, servers: Servers, orders: Sequence[Order], poison: Poison, *, view: str
) -> None:
    rows = await servers.table(view)
    verdict.differences += revenue_differences(orders, rows, poison)
    kept = [order for order in orders if not order.is_cancelled]
    sound = [row for row in rows if not row["order_id"].startswith("poison-")]
    verdict.figure("revenue: rows", len(kept), len(sound))
    verdict.figure("revenue: cents", sum(o.cents for o in kept), sum(int(row["cents"]) for row in sound))
    verdict.figure("revenue: days", len({order.day for order in kept}), len({row["day"] for row in sound}))


async def _check_values(
    verdict: Verdict, servers: Servers, orders: Sequence[Order], poison: Poison, *, alias: str
) -> None:
    documents = await servers.documents(alias, sorted_by="customer_id")
    verdict.differences += value_differences(orders, documents, poison)
    sound = [each for each in documents.values() if not each["customer_id"].startswith("poison-")]
    verdict.figure("value: customers", len({order.customer_id for order in orders}), len(sound))
    verdict.figure("value: orders", len(orders), sum(each["orders"] for each in sound))
    verdict.figure("value: cents", sum(order.cents for order in orders), sum(each["cents"] for each in sound))
    verdict.figure("value: keys not rendered", 0, (await servers.rows(_DIRTY))[0]["keys"])


async def _check_letters(verdict: Verdict, servers: Servers, sent: Sequence[FoundRecord], *, service: str) -> None:
    letters = Letters(sent)
    await letters.check(servers, service)
    verdict.differences += letters.differences
    verdict.dead_letters = {job: dict(sorted(reasons.items())) for job, reasons in letters.by_reason.items()}
    sent_kinds = {record.header(MARK) for record in sent} - {None}
    for job in JOBS:
        wanted = poison_reasons(job)
        verdict.figure(f"dead letters of {job}", len(wanted), letters.by_reason[job].total())
        verdict.differences += [f"poison {kind!r} was never sent" for kind in sorted(wanted.keys() - sent_kinds)]


async def _check_recovered(
    verdict: Verdict, servers: Servers, sent: Sequence[FoundRecord], *, service: str, dead: int
) -> None:
    """Letters of sound orders, all of them resolved, in both places; and nothing waits behind them."""
    for job in JOBS:
        wanted = dead if job == LEDGER else 0
        found = await recovered(servers, sent, job=job, dlq_topic=f"{service}.{job}.dlq")
        verdict.differences += found.differences
        verdict.dead_letters[job] = dict(found.reasons)
        verdict.figure(f"letters of {job}, resolved", wanted, found.resolved)
        verdict.figure(f"DLQ topic of {job}: resolved", wanted, found.told_resolved)
    verdict.figure("events parked", 0, (await servers.rows(PARKED))[0]["parked"])


async def _check_claims(verdict: Verdict, servers: Servers, orders: list[Order], poison: Poison) -> None:
    claimed = {row["code"]: row["claimed"] for row in await servers.rows(_CLAIMS)}
    for job, count in expected_claims(orders, poison).items():
        verdict.figure(f"event ids taken by {job}", count, claimed.get(job, 0))


async def _check_positions(verdict: Verdict, servers: Servers, topic: str) -> None:
    ends = await servers.log_ends(topic)
    positions = {(row["code"], row["partition"]): row["next_offset"] for row in await servers.rows(_POSITIONS, topic)}
    for job in JOBS:
        found = {partition: positions.get((job, partition), 0) for partition in ends}
        verdict.figure(f"settled records of {job}", sum(ends.values()), sum(found.values()))
        verdict.differences += [
            f"{job}: partition {partition} is settled up to {found[partition]}, its log ends at {end}"
            for partition, end in ends.items()
            if found[partition] != end
        ]


async def _run(prefix: str, limit: int | None, dead: int | None) -> Verdict:
    async with connected(Addresses.of_environment()) as servers:
        return await check(servers, prefix, limit, dead)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.check_shop", description=__doc__)
    parser.add_argument("--prefix", default="", help="what SHOP_PREFIX was when the shop ran")
    parser.add_argument("--orders", type=int, help="how many purchases were sent; all by default")
    parser.add_argument("--recovered", type=int, metavar="N", help="no poison was sent, and N orders were dead once")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    arguments = parser.parse_args()
    verdict = asyncio.run(_run(arguments.prefix, arguments.orders, arguments.recovered))
    if arguments.json:
        print(json.dumps(asdict(verdict)))
    else:
        for what, expected, found in verdict.figures:
            print(f"{'ok ' if expected == found else 'NOT'}  {what}: expected {expected}, found {found}")
        for difference in verdict.differences[:_SHOWN]:
            print(difference)
        if len(verdict.differences) > _SHOWN:
            print(f"… and {len(verdict.differences) - _SHOWN} more")
    return 1 if verdict.differences else 0


if __name__ == "__main__":
    sys.exit(main())
