"""The effects: accounts, documents and rows compared one by one, and differences told by the order's name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from examples.check_shop.expected import (
    LEDGER,
    POISON,
    REVENUE,
    SEARCH,
    VALUE,
    Account,
    Order,
    Poison,
    expected_documents,
    expected_ledger,
    expected_rows,
    expected_values,
    poison_applied,
)

_POISON = "poison-"
_NOTHING = (0, 0)


def ledger_differences(
    orders: Sequence[Order], rows: Sequence[Mapping[str, Any]], poison: Poison = POISON
) -> Iterator[str]:
    """One sentence for each account that is not as the source says. `poison`: the kinds that were sent."""
    found: dict[Account, tuple[int, int]] = {
        (row["tenant"], row["brand"], row["customer_id"]): (row["orders"], row["cents"]) for row in rows
    }
    wanted = expected_ledger(list(orders))
    wanted |= {("aurora", "vinyl", f"{_POISON}{kind}"): (1, 0) for kind in poison_applied(LEDGER, poison)}
    of_account: dict[Account, list[Order]] = defaultdict(list)
    for order in orders:
        of_account[order.account].append(order)
    for account in sorted(wanted.keys() | found.keys()):
        expected, actual = wanted.get(account, _NOTHING), found.get(account, _NOTHING)
        if expected != actual:
            yield (
                f"{LEDGER}: account {'/'.join(account)} should have {expected[0]} orders and {expected[1]} cents, "
                f"has {actual[0]} and {actual[1]}{_suspicion(of_account[account], expected, actual)}"
            )


def _suspicion(orders: Sequence[Order], expected: tuple[int, int], actual: tuple[int, int]) -> str:
    """Which single order, left out or applied twice, would explain the difference."""
    count, cents = actual[0] - expected[0], actual[1] - expected[1]
    if abs(count) != 1:
        return ""
    suspects = [order.order_id for order in orders if order.cents == cents * count]
    if not suspects:
        return ""
    return f": as if {' or '.join(suspects)} was {'applied twice' if count > 0 else 'left out'}"


def search_differences(
    orders: Sequence[Order], documents: Mapping[str, Mapping[str, Any]], poison: Poison = POISON
) -> Iterator[str]:
    """One sentence for each document that is missing, too many, or in another state."""
    yield from _differences(SEARCH, expected_documents(list(orders)), documents, poison)


def revenue_differences(
    orders: Sequence[Order], rows: Sequence[Mapping[str, Any]], poison: Poison = POISON
) -> Iterator[str]:
    """One sentence for each row that is missing, too many, there twice, or in another state."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        # ClickHouse quotes 64-bit numbers in JSON unless told otherwise.
        plain = {**row, "cents": int(row["cents"]), "gift_wrapped": bool(row["gift_wrapped"])}
        if found.setdefault(row["order_id"], plain) is not plain:
            yield f"{REVENUE}: order {row['order_id']} has two rows"
    yield from _differences(REVENUE, expected_rows(list(orders)), found, poison)


def value_differences(
    orders: Sequence[Order], documents: Mapping[str, Mapping[str, Any]], poison: Poison = POISON
) -> Iterator[str]:
    """One sentence for each customer who is missing, too many, or worth something else."""
    sound = {name.replace(f"aurora/{_POISON}", _POISON): each for name, each in documents.items()}
    yield from _differences(VALUE, expected_values(list(orders)), sound, poison, what="customer")


def _differences(
    job: str,
    wanted: Mapping[str, Mapping[str, object]],
    found: Mapping[str, Mapping[str, Any]],
    sent: Poison,
    *,
    what: str = "order",
) -> Iterator[str]:
    poison = {f"{_POISON}{kind}" for kind in poison_applied(job, sent)}
    for name in sorted((wanted.keys() | poison) - found.keys()):
        yield f"{job}: {what} {name} is missing"
    for name in sorted(found.keys() - wanted.keys() - poison):
        yield f"{job}: {what} {name} should not be there"
    for name in sorted(wanted.keys() & found.keys()):
        if wanted[name] != found[name]:
            wrong = {
                field: (wanted[name].get(field), found[name].get(field))
                for field in wanted[name].keys() | found[name].keys()
                if wanted[name].get(field) != found[name].get(field)
            }
            told = ", ".join(f"{field} should be {want!r}, is {is_!r}" for field, (want, is_) in sorted(wrong.items()))
            yield f"{job}: {what} {name} is not in its newest state: {told}"
