"""The checker: independent of what it checks, and able to say no."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import examples.check_shop
from examples.check_shop.effects import ledger_differences, revenue_differences, search_differences
from examples.check_shop.expected import (
    JOBS,
    LEDGER,
    POISON,
    REVENUE,
    SEARCH,
    Order,
    expected_documents,
    expected_ledger,
    expected_rows,
    poison_applied,
    poison_reasons,
    read_orders,
)
from examples.check_shop.letters import MARK, Letters
from examples.check_shop.servers import FoundRecord
from examples.shop.demo import poison
from examples.shop.demo.purchases import read_purchases


@pytest.fixture(scope="module")
def orders() -> list[Order]:
    return read_orders(200)


def _ledger(orders: list[Order]) -> list[dict[str, Any]]:
    """Rows as Postgres would hold them after a trial without fault."""
    accounts = expected_ledger(orders)
    accounts |= {("aurora", "vinyl", f"poison-{kind}"): (1, 0) for kind in poison_applied(LEDGER)}
    names = ("tenant", "brand", "customer_id", "orders", "cents")
    return [dict(zip(names, (*account, *sums), strict=True)) for account, sums in accounts.items()]


def _documents(orders: list[Order]) -> dict[str, dict[str, object]]:
    return expected_documents(orders) | {f"poison-{kind}": {} for kind in poison_applied(SEARCH)}


def _rows(orders: list[Order]) -> list[Mapping[str, Any]]:
    poisoned = [{"order_id": f"poison-{kind}", "cents": 0, "gift_wrapped": False} for kind in poison_applied(REVENUE)]
    return [*expected_rows(orders).values(), *poisoned]


def test_checker_imports_nothing_of_what_it_checks() -> None:
    """A rule that both share could be wrong in both."""
    own = Path(examples.check_shop.__file__).parent
    allowed = ("examples.check_shop", "aiohttp", "aiokafka", "asyncpg")
    for module in own.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = [
                name
                for name in names
                if name.partition(".")[0]
                in {"examples", "tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections"}
                and not name.startswith(allowed)
            ]
            assert foreign == [], module.name


def test_checker_and_shop_read_the_same_orders_from_the_source() -> None:
    """Both state the rules for themselves: here is where they meet."""
    theirs = [
        (p.line, p.order_id, p.tenant, p.brand, p.customer_id, p.cents, p.is_amended, p.is_cancelled)
        for p in read_purchases()
    ]
    ours = [
        (o.line, o.order_id, o.tenant, o.brand, o.customer_id, o.cents, o.is_amended, o.is_cancelled)
        for o in read_orders(None)
    ]
    assert ours == theirs


def test_checker_knows_every_kind_of_poison() -> None:
    """A kind without a rule would never be missed."""
    assert POISON.keys() == poison.POISON.keys()
    assert poison.MARK == MARK
    assert all(len(poison_reasons(job)) >= 12 for job in JOBS)


def test_sound_stores_have_no_differences(orders: list[Order]) -> None:
    """Else the other tests of this file would prove nothing."""
    assert list(ledger_differences(orders, _ledger(orders))) == []
    assert list(search_differences(orders, _documents(orders))) == []
    assert list(revenue_differences(orders, _rows(orders))) == []


@pytest.mark.parametrize("times, told", [(1, "applied twice"), (-1, "left out")])
def test_effect_too_many_or_too_few_names_the_order(orders: list[Order], times: int, told: str) -> None:
    """A total that is off by some cents helps nobody to find the cause."""
    rows, victim = _ledger(orders), orders[0]
    row = next(r for r in rows if (r["tenant"], r["brand"], r["customer_id"]) == victim.account)
    row["orders"] += times
    row["cents"] += times * victim.cents

    (difference,) = ledger_differences(orders, rows)

    assert victim.order_id in difference
    assert told in difference


def test_missing_document_is_named(orders: list[Order]) -> None:
    """A dropped event."""
    documents = _documents(orders)
    del documents[orders[0].order_id]
    assert list(search_differences(orders, documents)) == [f"order-search: order {orders[0].order_id} is missing"]


def test_cancelled_order_that_is_there_is_named(orders: list[Order]) -> None:
    """A resurrected document."""
    cancelled = next(order for order in orders if order.is_cancelled)
    documents = _documents(orders) | {cancelled.order_id: {}}
    assert list(search_differences(orders, documents)) == [
        f"order-search: order {cancelled.order_id} should not be there"
    ]


def test_document_of_an_older_state_is_named_with_its_fields(orders: list[Order]) -> None:
    """A stale write that won."""
    amended = next(order for order in orders if order.is_amended and not order.is_cancelled)
    documents = _documents(orders)
    documents[amended.order_id] |= {"version": 1, "gift_wrapped": False}

    (difference,) = search_differences(orders, documents)

    assert amended.order_id in difference
    assert "version should be 2, is 1" in difference


def test_second_row_of_an_order_is_named(orders: list[Order]) -> None:
    """A reader's sum would count it twice."""
    rows = _rows(orders)
    (difference,) = revenue_differences(orders, [*rows, rows[0]])
    assert f"order {orders[0].order_id} has two rows" in difference


def _sent() -> list[FoundRecord]:
    return [
        FoundRecord("t", 0, place, b"k", b"v", (("x", b"1"), (MARK, kind.encode())))
        for place, kind in enumerate(POISON)
    ] + [FoundRecord("t", 0, 1000, b"sound", b"v", ())]


def _letters(records: list[FoundRecord], job: str) -> list[tuple[tuple[str, int, int], FoundRecord, str]]:
    wanted = poison_reasons(job)
    return [
        ((r.topic, r.partition, r.offset), r, wanted[kind]) for r in records if (kind := r.header(MARK) or "") in wanted
    ]


def test_letters_as_expected_are_no_difference() -> None:
    """Else the next tests would prove nothing."""
    checked = Letters(_sent())
    checked.compare("here", _letters(_sent(), LEDGER), poison_reasons(LEDGER))
    assert checked.differences == []


def test_missing_letter_wrong_reason_and_sound_record_are_told() -> None:
    """A poison reason that is missing, or a good record that was buried, is what a trial is for."""
    sent = _sent()
    letters = _letters(sent, LEDGER)
    letters[0] = (letters[0][0], letters[0][1], "rejected")
    missing = letters.pop()
    letters.append((("t", 0, 1000), sent[-1], "handler_failed"))
    checked = Letters(sent)

    checked.compare("here", letters, poison_reasons(LEDGER))

    kinds = list(poison_reasons(LEDGER))
    assert len(checked.differences) == 3
    assert any("a sound record is dead" in difference for difference in checked.differences)
    assert any(repr(kinds[0]) in difference and "is rejected" in difference for difference in checked.differences)
    assert any(repr(missing[1].header(MARK)) in d and "is no letter" in d for d in checked.differences)


@pytest.mark.parametrize("part", ["key", "value", "headers"])
def test_letter_that_is_not_byte_exact_is_told(part: str) -> None:
    """A dead letter that was bent cannot be replayed."""
    sent = _sent()
    letters = _letters(sent, LEDGER)
    place, letter, reason = letters[0]
    bent = FoundRecord(**{**vars(letter), part: (("x", b"2"),) if part == "headers" else b"bent"})
    checked = Letters(sent)

    checked.compare("here", [(place, bent, reason), *letters[1:]], poison_reasons(LEDGER))

    assert [d for d in checked.differences if f"its {part} differs" in d] == checked.differences
    assert len(checked.differences) == 1
