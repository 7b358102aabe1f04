"""What became of a letter, told on its job's DLQ topic through the outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dlq.letters import Failure, Origin, record_dead_letters
from dlq.outcomes import Decided, tell_outcomes
from dlq.states import LetterState
from tidegate_kernel.errors import InvalidEvent, Reason
from tidegate_kernel.event import Headers, JobId
from tidegate_kernel.postgres import Connection, connect

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Given:
    offset: int = 0
    value: bytes | None = b"{}"
    key: bytes | None = b"k"
    headers: Headers = field(default_factory=list)
    timestamp: int = 1_700_000_000_000
    topic: str = "shop.orders"
    partition: int = 7


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


async def declare(connection: Connection) -> Origin:
    job = await connection.fetchval(
        "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('shop', 'ledger', 'v1') RETURNING id"
    )
    return Origin(
        job=JobId(job),
        job_code="ledger",
        service="shop",
        group="shop.ledger",
        service_version="1.0",
        dlq_topic="shop.ledger.dlq",
    )


async def fail(connection: Connection, origin: Origin, count: int = 1, *, at: datetime = NOW) -> list[UUID]:
    failures = [
        Failure(
            record=Given(n, key=b"k%d" % n), topic_id=UUID(int=7), reason=Reason.INVALID_EVENT, error=InvalidEvent("x")
        )
        for n in range(count)
    ]
    async with connection.transaction():
        return list((await record_dead_letters(connection, origin, failures, at)).values())


async def decide(connection: Connection, origin: Origin, letters: list[UUID], *, at: datetime) -> None:
    async with connection.transaction():
        rows = await connection.fetch(
            """UPDATE tidegate.dead_letter SET state = 'resolved', decided_at = $1 WHERE id = ANY ($2)
            RETURNING id, last_failed_at""",
            at,
            letters,
        )
        failed_at = {row["id"]: row["last_failed_at"] for row in rows}
        decided = [
            Decided(letter, b"k%d" % n, LetterState.RESOLVED, at, failed_at[letter]) for n, letter in enumerate(letters)
        ]
        await tell_outcomes(connection, origin, decided)


async def told(connection: Connection) -> list[dict[str, str]]:
    """Our headers of everything in the outbox, in its order."""
    rows = await connection.fetch("SELECT header_names, header_values FROM tidegate.outbox ORDER BY id")
    return [
        {name.decode(): value.decode() for name, value in zip(row["header_names"], row["header_values"], strict=True)}
        for row in rows
    ]


async def test_an_outcome_leaves_with_the_transaction_that_decided(connection: Connection) -> None:
    """G7: an outcome told without the decision would close a letter that stands; the other way it would open one."""
    origin = await declare(connection)
    letters = await fail(connection, origin)
    transaction = connection.transaction()
    await transaction.start()
    await tell_outcomes(connection, origin, [Decided(letters[0], b"k0", LetterState.DISCARDED, NOW, NOW)])
    await transaction.rollback()
    await decide(connection, origin, letters, at=NOW + timedelta(hours=1))

    row = await connection.fetchrow("SELECT * FROM tidegate.outbox ORDER BY id DESC LIMIT 1")
    assert await connection.fetchval("SELECT count(*) FROM tidegate.outbox") == 2
    assert row is not None
    assert (row["kind"], row["topic"], row["key"], row["value"]) == ("dead_letter", "shop.ledger.dlq", b"k0", None)
    assert (await told(connection))[-1] == {
        "tg-dlq-id": str(letters[0]),
        "tg-dlq-job": "ledger",
        "tg-dlq-state": "resolved",
        "tg-dlq-decided-at": (NOW + timedelta(hours=1)).isoformat(),
    }


async def test_any_number_of_outcomes_costs_one_round_trip(connection: Connection) -> None:
    """The locks of a run's transaction are held meanwhile."""
    origin = await declare(connection)
    letters = await fail(connection, origin, 300)
    await decide(connection, origin, letters[:1], at=NOW)  # the driver learns the types once per connection
    statements: list[str] = []
    async with connection.transaction():
        connection.add_query_logger(lambda query: statements.append(query.query))
        decided = [Decided(letter, b"k", LetterState.DISCARDED, NOW, NOW) for letter in letters]
        await tell_outcomes(connection, origin, decided)
        spoken = len(statements)

    assert spoken <= 1
    assert len(await told(connection)) == 601


async def test_the_times_of_a_letter_only_grow_whatever_the_clocks_say(connection: Connection) -> None:
    """The topic's readers order by them: a host that is a minute ahead must not reopen what another resolved."""
    origin = await declare(connection)
    letters = await fail(connection, origin, at=NOW)

    await decide(connection, origin, letters, at=NOW - timedelta(minutes=1))
    await fail(connection, origin, at=NOW - timedelta(minutes=2))
    await decide(connection, origin, letters, at=NOW + timedelta(minutes=1))
    await fail(connection, origin, at=NOW)

    times = [one.get("tg-dlq-decided-at") or one["tg-dlq-last-failed-at"] for one in await told(connection)]
    assert len(times) == 5
    assert [datetime.fromisoformat(time) for time in times] == sorted({datetime.fromisoformat(time) for time in times})
    row = await connection.fetchrow("SELECT state, last_failed_at, occurrences FROM tidegate.dead_letter")
    assert row is not None
    assert (row["state"], row["occurrences"]) == ("dead", 3)
    assert row["last_failed_at"] == datetime.fromisoformat(times[-1])
