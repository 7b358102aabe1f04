"""`tidegate.testing` as an application's own tests use it: the real road, Kafka and sinks in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from tidegate import (
    App,
    CloudEvents,
    ConsumerJob,
    Context,
    DebeziumOutbox,
    Delete,
    Elasticsearch,
    Event,
    Json,
    PlainJson,
    ProjectionJob,
    Rejected,
    RetryLater,
    RetryPolicy,
    ScopeFields,
    Tombstone,
    Topic,
    Upsert,
    handle,
    on,
    testing,
)
from tidegate.testing.pytest_plugin import tidegate_postgres, tidegate_postgres_template  # noqa: F401  # fixtures
from tidegate_kernel.errors import Misconfigured, Reason

_QUICK = RetryPolicy(first_delay=timedelta(milliseconds=1), longest_delay=timedelta(milliseconds=5))


class OrderPlaced(BaseModel):
    order_id: str
    customer_id: str
    cents: int
    version: int = 1


class OrderPaid(BaseModel):
    order_id: str


@dataclass(frozen=True)
class RecordPurchase:
    customer_id: str
    cents: int


@dataclass(frozen=True)
class Shop:
    currency: str = "EUR"


def to_purchase(event: Event[OrderPlaced]) -> RecordPurchase:
    return RecordPurchase(event.data.customer_id, event.data.cents)


async def record_purchase(command: RecordPurchase, ctx: Context[Shop]) -> None:
    if command.cents < 0:
        raise Rejected("a purchase costs something")
    if command.cents == 13:
        raise ZeroDivisionError
    if command.cents == 14:
        raise RetryLater("not yet", after=60)
    await ctx.db.execute(
        "INSERT INTO ledger VALUES ($1, $2, 1) ON CONFLICT (customer) "
        "DO UPDATE SET cents = ledger.cents + excluded.cents, purchases = ledger.purchases + 1",
        command.customer_id,
        command.cents,
    )
    ctx.publish(
        "shop.ledger",
        {"customer": command.customer_id, "currency": ctx.deps.currency, "tenant": ctx.scope.tenant},
        key=command.customer_id,
        type="ledger.changed",
    )


def order_document(event: Event[OrderPlaced]) -> Upsert:
    return Upsert(event.data.order_id, event.data.version, {"cents": event.data.cents})


def order_removed(tombstone: Tombstone) -> Delete:
    return Delete((tombstone.key or b"").decode(), int(tombstone.headers["version"] or b"0"))


def shop(migrations: Path, topic: Topic | None = None) -> App:
    orders = topic or Topic(
        "shop.orders",
        format=Json(),
        envelope=CloudEvents(),
        scope=ScopeFields(tenant="tenantid", brand="brandid"),
        tombstone=order_removed,
    )
    ledger = ConsumerJob(
        code="customer-ledger",
        topics=[orders],
        unlisted="skip",
        runbook="docs/ledger.md",
        retry=_QUICK,
        events=[on("order.placed", OrderPlaced, to_purchase)],
    )
    search = ProjectionJob(
        code="order-search",
        topics=[orders],
        unlisted="skip",
        runbook="docs/search.md",
        events=[on("order.placed", OrderPlaced, order_document)],
        sink=Elasticsearch(index="orders", mappings={"properties": {"cents": {"type": "long"}}}),
        freshness_sla=timedelta(seconds=5),
    )
    return App(
        service="shop",
        owner="orders-team",
        jobs=[ledger, search],
        handlers=[handle(RecordPurchase, record_purchase)],
        migrations=migrations,
    )


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    (tmp_path / "0001_ledger.sql").write_text(
        "CREATE TABLE ledger (customer text PRIMARY KEY, cents bigint NOT NULL, purchases int NOT NULL)"
    )
    return tmp_path


@pytest.fixture
async def t(tidegate_postgres: str, migrations: Path) -> AsyncIterator[testing.Driver]:  # noqa: F811
    async with testing.run(shop(migrations), db=tidegate_postgres, deps=Shop()) as driver:
        yield driver


async def ledger(t: testing.Driver) -> dict[str, tuple[int, int]]:
    return {row["customer"]: (row["cents"], row["purchases"]) for row in await t.db.fetch("SELECT * FROM ledger")}


async def test_a_sent_event_has_gone_all_the_way_when_send_returns(t: testing.Driver) -> None:
    """A test of an application reads its effects on the next line: nothing to poll, nothing to sleep for."""
    record = await t.send(
        "shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=500), key="o1", tenant="acme", brand="b"
    )

    assert (record.topic, record.offset) == ("shop.orders", 0)
    assert await ledger(t) == {"c1": (500, 1)}
    assert t.sink("order-search").get("o1") == {"cents": 500}
    assert t.dead_letters == []
    (published,) = t.published("shop.ledger")
    assert published.type == "ledger.changed"
    assert published.key == "c1"
    assert published.data == {"customer": "c1", "currency": "EUR", "tenant": "acme"}
    assert published.headers["ce_tenantid"] == "acme"


async def test_redelivery_changes_nothing(t: testing.Driver) -> None:
    """The guarantee an application buys: a test of it that could not rewind would prove little."""
    for number in range(5):
        await t.send("shop.orders", OrderPlaced(order_id=f"o{number}", customer_id="c1", cents=10), key=f"o{number}")
    await t.send("shop.orders", OrderPlaced(order_id="bad", customer_id="c1", cents=-1), key="bad")
    before = (await ledger(t), t.sink("order-search").rows(), t.published("shop.ledger"), len(t.dead_letters))

    await t.redeliver_all()

    assert (await ledger(t), t.sink("order-search").rows(), t.published("shop.ledger"), len(t.dead_letters)) == before
    assert before[0] == {"c1": (50, 5)}


async def test_a_repeated_event_id_acts_once(t: testing.Driver) -> None:
    """Producers repeat themselves at new offsets."""
    for _ in range(2):
        await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=10), key="o1", id="e1")

    assert await ledger(t) == {"c1": (10, 1)}


async def test_dead_letters_tell_job_reason_and_record(t: testing.Driver) -> None:
    """What a job refuses is as much its behaviour as what it does."""
    await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=-5), key="o1", id="e1")
    garbage = await t.send_raw("shop.orders", b"\xff", key="o2", headers=[("ce_id", b"e2"), ("x", None)])

    rejected, *undecodable = t.dead_letters

    assert (rejected.job, rejected.reason) == ("customer-ledger", Reason.REJECTED)
    assert rejected.error_message == "a purchase costs something"
    assert (rejected.event_id, rejected.event_type, rejected.key) == ("e1", "order.placed", b"o1")
    assert {(letter.job, letter.offset, letter.partition) for letter in undecodable} == {
        ("customer-ledger", garbage.offset, garbage.partition),
        ("order-search", garbage.offset, garbage.partition),
    }
    assert undecodable[0].value == b"\xff"
    assert undecodable[0].headers == [("ce_id", b"e2"), ("x", None)]
    assert undecodable[0].error_message
    assert len(t.published("shop.customer-ledger.dlq")) == 2


async def test_a_handler_that_keeps_failing_costs_only_its_event(t: testing.Driver) -> None:
    """The retries are the job's own, run for real."""
    await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=13), key="o1")
    await t.send("shop.orders", OrderPlaced(order_id="o2", customer_id="c1", cents=10), key="o2")

    assert [(letter.reason, letter.attempts) for letter in t.dead_letters] == [(Reason.HANDLER_FAILED, 3)]
    assert await ledger(t) == {"c1": (10, 1)}


async def test_a_tombstone_deletes_and_older_news_do_not_bring_it_back(t: testing.Driver) -> None:
    """A record without a value is what a compacted topic says when something is gone."""
    await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=1, version=1), key="o1")
    await t.tombstone("shop.orders", "o1", headers=[("version", b"3")])
    await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=2, version=2), key="o1")

    assert t.sink("order-search").rows() == {}


async def test_unlisted_types_are_passed_over(t: testing.Driver) -> None:
    """A type that no route takes needs to be named: no model tells it."""
    with pytest.raises(Misconfigured, match="no event type with model OrderPaid; give type"):
        await t.send("shop.orders", OrderPaid(order_id="o1"))

    await t.send("shop.orders", OrderPaid(order_id="o1"), type="order.paid")

    assert t.dead_letters == []
    assert t.sink("order-search").rows() == {}


async def test_unknown_names_are_told_with_the_known_ones(t: testing.Driver) -> None:
    """A typo in a topic must not look like an app that does nothing."""
    with pytest.raises(Misconfigured, match=r"no job .* reads topic 'shop.order'; they read: shop.orders"):
        await t.send_raw("shop.order", b"")
    with pytest.raises(Misconfigured, match="those that have: 'order-search'"):
        t.sink("customer-ledger")


async def test_jobs_go_on_where_they_were_after_a_restart(t: testing.Driver) -> None:
    """A deployment in the middle of a test is one line."""
    await t.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=10), key="o1")
    await t.restart()
    await t.send("shop.orders", OrderPlaced(order_id="o2", customer_id="c1", cents=10), key="o1")

    assert await ledger(t) == {"c1": (20, 2)}


async def test_what_is_never_settled_is_an_error_that_says_why(
    tidegate_postgres: str,  # noqa: F811
    migrations: Path,
) -> None:
    """A test that hangs tells nothing; one that gives up must name job, partition and how far it came."""
    async with testing.run(
        shop(migrations), db=tidegate_postgres, deps=Shop(), deadline=timedelta(seconds=1)
    ) as driver:
        with pytest.raises(testing.NotSettled, match=r"'customer-ledger', shop.orders:\d: settled up to 0, .* tried"):
            await driver.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=14), key="o1")


async def test_the_lifespan_yields_deps_unless_the_test_gives_them(
    tidegate_postgres: str,  # noqa: F811
    migrations: Path,
) -> None:
    """A test may replace what the app opens in production, or use it."""
    closed = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Shop]:
        yield Shop(currency="GBP")
        closed.append(True)

    plain = shop(migrations)
    app = App(**{**{name: getattr(plain, name) for name in plain.__dataclass_fields__}, "lifespan": lifespan})
    async with testing.run(app, db=tidegate_postgres) as driver:
        await driver.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=1), key="o1")
        assert driver.published("shop.ledger")[0].data["currency"] == "GBP"
        assert driver.deps == Shop(currency="GBP")

    assert closed == [True]


@pytest.mark.parametrize(
    "envelope",
    [
        DebeziumOutbox(version_header="v", source_header="from"),
        PlainJson(),
        PlainJson(data="payload", version="v", occurred_at="at"),
    ],
    ids=["debezium", "plain", "plain with data"],
)
async def test_send_speaks_every_envelope_of_ours(
    tidegate_postgres: str,  # noqa: F811
    migrations: Path,
    envelope: DebeziumOutbox | PlainJson,
) -> None:
    """Tests of an app read the same whatever its topics carry."""
    topic = Topic(
        "shop.orders", format=Json(), envelope=envelope, scope=ScopeFields(tenant="t"), tombstone=order_removed
    )
    async with testing.run(shop(migrations, topic), db=tidegate_postgres, deps=Shop()) as driver:
        for _ in range(2):
            await driver.send(
                "shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=7), key="o1", id="e1", tenant="acme"
            )

        assert driver.dead_letters == []
        assert await ledger(driver) == {"c1": (7, 1)}
        assert driver.published("shop.ledger")[0].data["tenant"] == "acme"


async def test_a_pool_tells_where_its_database_is(tidegate_postgres: str, migrations: Path) -> None:  # noqa: F811
    """Applications have a pool at hand in their tests."""
    import asyncpg

    async with asyncpg.create_pool(tidegate_postgres, min_size=0) as pool:
        async with testing.run(shop(migrations), db=pool, deps=Shop()) as driver:
            await driver.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=1), key="o1")
        assert await pool.fetchval("SELECT cents FROM ledger") == 1


async def test_a_deadline_may_be_longer_than_a_rebalance(tidegate_postgres: str, migrations: Path) -> None:  # noqa: F811
    """Whoever steps through a handler with a debugger wants an hour; no group of Kafka's waits for it."""
    async with testing.run(shop(migrations), db=tidegate_postgres, deps=Shop(), deadline=timedelta(hours=1)) as driver:
        await driver.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=1), key="o1")

        assert await ledger(driver) == {"c1": (1, 1)}


async def test_a_database_without_our_tables_gets_them(empty_database: str, migrations: Path) -> None:
    """The first test of an application needs no set-up but a database."""
    async with testing.run(shop(migrations), db=empty_database, deps=Shop()) as driver:
        await driver.send("shop.orders", OrderPlaced(order_id="o1", customer_id="c1", cents=1), key="o1")

        assert await ledger(driver) == {"c1": (1, 1)}


def test_the_plugin_is_light() -> None:
    """It is loaded at every start of pytest, also where no test uses it."""
    program = """if True:
        import sys, types
        # What `import tidegate` itself costs is not this module's matter.
        sys.modules["tidegate"] = face = types.ModuleType("tidegate")
        face.__path__ = ["tidegate"]
        import tidegate.testing.pytest_plugin
        print([name for name in ("alembic", "asyncpg", "pydantic", "tidegate.app") if name in sys.modules])
    """

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_everything_public_is_there() -> None:
    """Names are looked up on first use: a wrong home would only show in somebody else's test."""
    assert all(getattr(testing, name).__name__ == name for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = testing.nothing
