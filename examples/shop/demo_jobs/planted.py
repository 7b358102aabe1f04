"""What the story puts there to be found: differences in the ledger, exports past their time, discs of a company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from examples.shop.catalogue.job import CUSTOMERS
from examples.shop.catalogue.provider_server import Company, Fault
from examples.shop.demo.poison import BRAND, TENANT
from examples.shop.demo.purchases import Purchase
from examples.shop.exports.files import ExportFiles
from examples.shop.exports.making import make_export
from examples.shop.scopes import SCOPES
from tidegate import Scope

LONG, CONTENDED, LARGE = Scope("aurora", "vinyl"), Scope("borealis", "vinyl"), Scope("cascade", "classics")
"""Scopes of the ledger: with many differences, where two runs meet, and with one that is too much for a machine."""

LONG_DIFFERENCES, CONTENDED_DIFFERENCES = 20, 12
TOO_MUCH = 1_000_000
EXPIRED_A_SCOPE, YOUNG_A_SCOPE = 8, 2
DISCS_A_BRAND = 450
BROKEN = Scope("aurora", "classics")
"""Whose discs hold one that nobody can keep: its run of the catalogue fails there, in the middle of the second page."""
BROKEN_DISC = 250
KEYS = {"aurora": "key-of-aurora", "borealis": "key-of-borealis"}

# Kinds of poison that cost nothing and that the ledger takes: orders, though no projection can keep them.
_TAKEN = ("before-1970", "negative-version")

_BOOK = "INSERT INTO order_record VALUES ($1, $2, $3, $4, $5, $6)"
_CLOSE = "INSERT INTO books_closed VALUES ($1, $2, $3)"
_ACCOUNTS = """
SELECT customer_id FROM ledger WHERE tenant = $1 AND brand = $2 ORDER BY customer_id COLLATE "C" LIMIT $3
"""
_WRONG = """
UPDATE ledger SET orders = orders + $4, cents = cents + $5 WHERE tenant = $1 AND brand = $2 AND customer_id = $3
"""
_GONE = "DELETE FROM ledger WHERE tenant = $1 AND brand = $2 AND customer_id = $3 RETURNING orders, cents"
_OLDER = "UPDATE export SET requested_at = now() - $2::interval WHERE id = $1"


class Account(NamedTuple):
    tenant: str
    brand: str
    customer_id: str


@dataclass(frozen=True)
class Differences:
    """By how many orders and cents accounts have to be corrected."""

    by_account: Mapping[Account, tuple[int, int]]

    def of(self, scope: Scope) -> Mapping[Account, tuple[int, int]]:
        return {each: by for each, by in self.by_account.items() if each[:2] == (scope.tenant, scope.brand)}

    @property
    def cents(self) -> int:
        return sum(cents for _, cents in self.by_account.values())


async def close_books(database: Any, purchases: Sequence[Purchase]) -> None:
    """The order service has written down every order of the source, yesterday, and closed its books."""
    now = datetime.now(UTC)
    rows = [(p.tenant, p.brand, p.order_id, p.customer_id, p.cents, now - timedelta(days=1)) for p in purchases]
    rows += [(TENANT, BRAND, name, name, 0, now - timedelta(days=1)) for name in (f"poison-{kind}" for kind in _TAKEN)]
    await database.executemany(_BOOK, rows)
    await database.executemany(_CLOSE, [(scope.tenant, scope.brand, now) for scope in SCOPES])


async def plant_differences(database: Any) -> Differences:
    """Accounts are wrong: an order too many, an order too few, gone as a whole, and one by far too much."""
    planted: dict[Account, tuple[int, int]] = {}
    for scope, count in ((LONG, LONG_DIFFERENCES), (CONTENDED, CONTENDED_DIFFERENCES)):
        rows = await database.fetch(_ACCOUNTS, scope.tenant, scope.brand, count)
        for number, row in enumerate(rows):
            account = Account(scope.tenant, scope.brand, row["customer_id"])
            planted[account] = await _spoil(database, account, number)
    (row,) = await database.fetch(_ACCOUNTS, LARGE.tenant, LARGE.brand, 1)
    account = Account(LARGE.tenant, LARGE.brand, row["customer_id"])
    await database.execute(_WRONG, *account, 0, TOO_MUCH)
    return Differences(planted | {account: (0, -TOO_MUCH)})


async def _spoil(database: Any, account: Account, number: int) -> tuple[int, int]:
    if number % 3 == 0:
        gone = await database.fetchrow(_GONE, *account)
        return gone["orders"], gone["cents"]
    orders, cents = (1, 100 + number) if number % 3 == 1 else (-1, -100 - number)
    await database.execute(_WRONG, *account, orders, cents)
    return -orders, -cents


async def plant_exports(database: Any, directory: Path) -> int:
    """Each tenant and brand has exports past their time and young ones; returns how many have to go."""
    files = ExportFiles(directory)
    files.make_first()
    async with database.acquire() as connection:
        for scope in SCOPES:
            for number in range(EXPIRED_A_SCOPE + YOUNG_A_SCOPE):
                export = await make_export(connection, files, scope, customer_id=f"c-{number}", content=b"an export")
                age = timedelta(days=40 if number < EXPIRED_A_SCOPE else 20)
                await connection.execute(_OLDER, export, age)
    return len(SCOPES) * EXPIRED_A_SCOPE


def disc_name(number: int) -> str:
    return f"d{number:04}"


def price_of(number: int) -> int:
    return 500 + number


def company() -> Company:
    """It has three pages for each brand. Once it asks for patience, once it breaks down in the second page, and one of
    its discs has a price below nothing."""
    made = Company(KEYS)
    for brand in {scope.brand for scope in CUSTOMERS}:
        for number in range(DISCS_A_BRAND):
            is_broken = (brand, number) == (BROKEN.brand, BROKEN_DISC)
            made.sell(brand, disc_name(number), price_cents=-1 if is_broken else price_of(number))
    made.faults.append(Fault(429, {"Retry-After": "1"}))
    made.faults.append(Fault(503, when=lambda asked: "page" in asked))
    return made
