"""What must be there, from the source file and the stated rules alone."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "shop" / "data" / "cdnow_master.txt.gz"
SOURCE_PURCHASES, SOURCE_CENTS = 69_659, 250_031_563

LEDGER, SEARCH, REVENUE, VALUE = JOBS = ("customer-ledger", "order-search", "revenue-by-day", "customer-value")

APPLIED, SKIPPED = "applied", "skipped"
Poison = Mapping[str, tuple[str, str, str, str]]
POISON: Poison = {
    "undecodable-bytes": ("undecodable", "undecodable", "undecodable", "undecodable"),
    "empty-value": ("undecodable", "undecodable", "undecodable", "undecodable"),
    "byte-order-mark": ("undecodable", "undecodable", "undecodable", "undecodable"),
    "cut-off": ("undecodable", "undecodable", "undecodable", "undecodable"),
    "array": ("invalid_event", "invalid_event", "invalid_event", "invalid_event"),
    "string": ("invalid_event", "invalid_event", "invalid_event", "invalid_event"),
    "null": ("invalid_event", "invalid_event", "invalid_event", "invalid_event"),
    "not-a-number": ("invalid_number", "invalid_number", "invalid_number", "invalid_number"),
    "number-out-of-range": ("invalid_number", "invalid_number", "invalid_number", "invalid_number"),
    "lone-surrogate": ("invalid_text", "invalid_text", "invalid_text", "invalid_text"),
    "missing-field": ("invalid_event", "invalid_event", "invalid_event", "invalid_event"),
    "wrong-type": ("invalid_event", "invalid_event", "invalid_event", "invalid_event"),
    "no-event-id": ("invalid_envelope", "invalid_envelope", "invalid_envelope", "invalid_envelope"),
    "old-specversion": ("invalid_envelope", "invalid_envelope", "invalid_envelope", "invalid_envelope"),
    "header-not-utf8": ("invalid_envelope", "invalid_envelope", "invalid_envelope", "invalid_envelope"),
    "tenant-not-utf8": ("invalid_envelope", "invalid_envelope", "invalid_envelope", "invalid_envelope"),
    "unread-content-type": ("invalid_envelope", "invalid_envelope", "invalid_envelope", "invalid_envelope"),
    # Only revenue-by-day wants to hear of what it does not know.
    "newer-version": (SKIPPED, SKIPPED, "unknown_version", SKIPPED),
    "unknown-type": (SKIPPED, SKIPPED, "unknown_type", SKIPPED),
    # The ledger knows no cancellations, nor does a customer's value: a record without a value is nothing to them.
    "nothing-at-all": (SKIPPED, "rejected", "rejected", SKIPPED),
    "cancelled-without-version": (SKIPPED, "no_version", "no_version", SKIPPED),
    # What one store cannot take another may: each job is judged alone.
    "nul-in-text": ("invalid_text", APPLIED, APPLIED, "projection_failed"),
    "negative-total": ("rejected", APPLIED, APPLIED, "rejected"),
    "huge-total": ("handler_failed", "invalid_document", "invalid_document", "rejected"),
    "before-1970": (APPLIED, APPLIED, "invalid_document", APPLIED),
    "negative-version": (APPLIED, "invalid_document", "invalid_document", APPLIED),
}
"""What becomes of each kind of poison in each job: the reason of its dead letter, or that there is none."""

TYPED_BUT_WRONG = frozenset({"nul-in-text", "negative-total", "huge-total", "before-1970", "negative-version"})
"""Kinds that are sound events in every job's eyes until their effect is tried: their ids are claimed."""

Account = tuple[str, str, str]
"""Tenant, brand, customer."""


@dataclass(frozen=True)
class Order:
    """A purchase of the source, and the state its order must be in."""

    line: int
    order_id: str
    tenant: str
    brand: str
    customer_id: str
    day: str
    discs: int
    cents: int
    is_amended: bool
    is_cancelled: bool

    @property
    def account(self) -> Account:
        return self.tenant, self.brand, self.customer_id


def read_orders(limit: int | None) -> list[Order]:
    """One order a line; lines are counted from 1 behind the line of column names."""
    text = gzip.decompress(SOURCE.read_bytes()).decode("ascii")
    lines = [line for line in text.splitlines()[1:] if line.strip()]
    return [_order(number, *line.split()) for number, line in enumerate(lines[:limit], start=1)]


def _order(line: int, customer: str, day: str, discs: str, dollars: str) -> Order:
    tenant = ("aurora", "borealis", "cascade")[int(customer) % 3]
    return Order(
        line,
        f"{tenant}-{line:06d}",
        tenant,
        "classics" if line % 2 else "vinyl",
        customer,
        f"{day[:4]}-{day[4:6]}-{day[6:]}",
        int(discs),
        int(dollars.replace(".", "")),  # the source always has two digits behind the point
        line % 53 == 0,
        line % 97 == 0,
    )


def expected_ledger(orders: list[Order]) -> dict[Account, tuple[int, int]]:
    """Orders and cents of every account: placed orders only, cancelled or not."""
    ledger: dict[Account, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for order in orders:
        count, cents = ledger[order.account]
        ledger[order.account] = (count + 1, cents + order.cents)
    return dict(ledger)


def expected_documents(orders: list[Order]) -> dict[str, dict[str, object]]:
    """Every order that is not cancelled, in its newest state."""
    return {
        order.order_id: {
            "order_id": order.order_id,
            "tenant": order.tenant,
            "brand": order.brand,
            "customer_id": order.customer_id,
            "purchased_on": order.day,
            "discs": order.discs,
            "total_cents": order.cents,
            "version": 2 if order.is_amended else 1,
            "gift_wrapped": order.is_amended,
        }
        for order in orders
        if not order.is_cancelled
    }


def expected_rows(orders: list[Order]) -> dict[str, dict[str, object]]:
    """The same orders as rows of revenue."""
    return {
        order.order_id: {
            "order_id": order.order_id,
            "tenant": order.tenant,
            "brand": order.brand,
            "customer_id": order.customer_id,
            "day": order.day,
            "discs": order.discs,
            "cents": order.cents,
            "gift_wrapped": order.is_amended,
        }
        for order in orders
        if not order.is_cancelled
    }


def expected_values(orders: list[Order]) -> dict[str, dict[str, object]]:
    """What each customer of a tenant has ordered in all, at both brands, cancelled or not."""
    values: dict[str, dict[str, object]] = {}
    of_customer: dict[tuple[str, str], list[Order]] = defaultdict(list)
    for order in orders:
        of_customer[order.tenant, order.customer_id].append(order)
    for (tenant, customer), mine in of_customer.items():
        values[f"{tenant}/{customer}"] = {
            "tenant": tenant,
            "customer_id": customer,
            "orders": len(mine),
            "cents": sum(order.cents for order in mine),
            "last_order_on": max(order.day for order in mine),
        }
    return values


def expected_claims(orders: list[Order], poison: Poison = POISON) -> dict[str, int]:
    """How many different event ids each job takes: of every event one, however often it is delivered."""
    placed, amended = len(orders), sum(order.is_amended for order in orders)
    viewed = sum(order.line % 50 == 0 for order in orders)
    events = (placed, placed + amended, placed + amended + viewed, placed + amended)
    return {job: count + len(TYPED_BUT_WRONG & poison.keys()) for job, count in zip(JOBS, events, strict=True)}


def poison_outcomes(job: str, poison: Poison = POISON) -> Iterator[tuple[str, str]]:
    """Kind and outcome in `job`, of the kinds that were sent."""
    place = JOBS.index(job)
    for kind, outcomes in poison.items():
        yield kind, outcomes[place]


def poison_reasons(job: str, poison: Poison = POISON) -> dict[str, str]:
    """Kinds that must be dead letters of `job`, with their reasons."""
    return {kind: outcome for kind, outcome in poison_outcomes(job, poison) if outcome not in (APPLIED, SKIPPED)}


def poison_applied(job: str, poison: Poison = POISON) -> set[str]:
    """Kinds that `job` can take: their effects must be there."""
    return {kind for kind, outcome in poison_outcomes(job, poison) if outcome == APPLIED}
