"""What the three tables are made of."""

import datetime as dt

import msgspec

from tidegate import CloudEvents, Delete, Json, Tombstone, Topic, VersionHeader


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
    return Topic(
        name,
        format=Json(),
        envelope=CloudEvents(),
        tombstone=article_removed,
        tombstone_version=VersionHeader("version"),
    )


def sales_topic(name: str) -> Topic:
    return Topic(name, format=Json(), envelope=CloudEvents())


def article_removed(tombstone: Tombstone) -> Delete:
    """The version stands in a header: a record without a value has no other place for it."""
    return Delete(id=(tombstone.key or b"").decode(), version=tombstone.version)
