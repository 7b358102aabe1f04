"""The real input: a line of the CDNOW file is a purchase."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "data" / "cdnow_master.txt.gz"

TENANTS = ("aurora", "borealis", "cascade")
BRANDS = ("vinyl", "classics")


class Purchase(NamedTuple):
    """`line` counts the purchases of the file from 1: equal lines are different purchases."""

    line: int
    customer_id: str
    purchased_on: date
    discs: int
    cents: int

    @property
    def tenant(self) -> str:
        return TENANTS[int(self.customer_id) % len(TENANTS)]

    @property
    def brand(self) -> str:
        return BRANDS[self.line % len(BRANDS)]

    @property
    def order_id(self) -> str:
        return f"{self.tenant}-{self.line:06d}"

    @property
    def is_amended(self) -> bool:
        return self.line % 53 == 0

    @property
    def is_cancelled(self) -> bool:
        return self.line % 97 == 0


def read_purchases(limit: int | None = None) -> list[Purchase]:
    """The first `limit` purchases of the file, or all."""
    with gzip.open(SOURCE, "rt", encoding="ascii") as lines:
        next(lines)  # column names
        numbered = enumerate((line for line in lines if line.strip()), start=1)
        return [_purchase(number, line) for number, line in numbered if limit is None or number <= limit]


def _purchase(number: int, line: str) -> Purchase:
    customer, day, discs, dollars = line.split()
    # Text to cents, never through a float: 0.29 * 100 is 28.999….
    whole, _, fraction = dollars.partition(".")
    cents = int(whole) * 100 + int(fraction.ljust(2, "0"))
    return Purchase(number, customer, date(int(day[:4]), int(day[4:6]), int(day[6:])), int(discs), cents)
