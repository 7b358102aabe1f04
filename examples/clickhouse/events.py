"""What the three tables are made of."""

import datetime as dt

import msgspec

from tidegate import CloudEvents, Delete, Json, Tombstone, Topic


class Stock(msgspec.Struct):
    """How many of an article lie in a shop, as of `version`."""

    article: str
    shop: str
    pieces: int
    version: int


class Sale(msgspec.Struct):
    """Something was sold: it never changes."""

    shop: str
    customer_id: str
    cents: int
    sold_on: dt.date


def stock_topic(name: str) -> Topic:
    """Compacted: a record without a value says that the article is not sold any more."""
    return Topic(name, format=Json(), envelope=CloudEvents(), tombstone=article_removed)


def sales_topic(name: str) -> Topic:
    return Topic(name, format=Json(), envelope=CloudEvents())


def article_removed(tombstone: Tombstone) -> Delete | None:
    """The version stands in a header: a record without a value has no other place for it."""
    told = dict(tombstone.record.headers)
    return Delete((tombstone.record.key or b"").decode(), int(told["version"])) if "version" in told else None
