"""Looking at dead letters in a real Postgres: pages, groups, one letter, and who may see what is in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from dlq.states import LetterState
from tidegate.console.letters import (
    Cursor,
    LetterFilter,
    letter_stats,
    list_letters,
    read_letter,
    read_payload,
)
from tidegate_kernel.errors import Denied, Misconfigured, Reason
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Connection
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries("tidegate.console")
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
OPERATOR = Actor("anna", Role.OPERATOR)
SECRET = b'{"card": "4111"}'


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database)
    await connection.execute(
        """
        INSERT INTO tidegate.job (service, code, claim_rule)
        VALUES ('shop', 'ledger', 'v1'), ('shop', 'search', 'v1'), ('other', 'ledger', 'v1')
        """
    )
    yield connection
    await connection.close()


async def put(connection: Connection, n: int, *, job: int = 1, **columns: Any) -> UUID:
    """Letter number `n`, which failed `n` seconds after the first."""
    at = BEGAN + timedelta(seconds=n)
    row = {
        "id": UUID(int=n), "job": job, "topic": "orders", "topic_id": UUID(int=7), "partition": 0, "offset": n,
        "key": b"key-%d" % n, "value": SECRET, "reason": "rejected", "error_class": "Rejected", "error_message": "no",
        "fingerprint": "f" * 16, "attempts": 1, "first_failed_at": at, "last_failed_at": at,
    } | columns  # fmt: skip
    names = ", ".join(f'"{name}"' for name in row)
    places = ", ".join(f"${place}" for place in range(1, len(row) + 1))
    await connection.execute(f"INSERT INTO tidegate.dead_letter ({names}) VALUES ({places})", *row.values())
    return UUID(int=n)


async def listed(connection: Connection, **wanted: Any) -> list[int]:
    page = await list_letters(connection, "shop", LetterFilter(**wanted))
    return [each.id.int for each in page.letters]


async def test_pages_hold_every_letter_once_the_newest_first(connection: Connection) -> None:
    """Also where many failed in the same moment, and where new ones come in while somebody reads."""
    for n in range(1, 12):
        await put(connection, n, job=1 + n % 2, last_failed_at=BEGAN + timedelta(seconds=n // 3))
    seen, after = [], None
    for _ in range(6):
        page = await list_letters(connection, "shop", LetterFilter(), after=after, limit=2)
        seen += [each.id.int for each in page.letters]
        after = None if page.after is None else Cursor.parse(str(page.after))
        await put(connection, 100 + len(seen))
    assert seen == list(range(11, 0, -1))
    assert after is None


ODD = {"reason": "too_large", "fingerprint": "0" * 16, "event_type": "order.gone", "tenant": "acme", "brand": "north"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"jobs": ["search"]},
        {"reason": Reason.TOO_LARGE},
        {"fingerprint": "0" * 16},
        {"event_type": "order.gone"},
        {"tenant": "acme"},
        {"brand": "north"},
        {"since": BEGAN + timedelta(seconds=2), "until": BEGAN + timedelta(seconds=3)},
        {"states": [LetterState.DISCARDED]},
        {"error": "LIMIT of 5%"},
        {"error": "documenterror"},
        {"key": b"key-2"},
    ],
)
async def test_each_filter_finds_its_letters_and_no_others(connection: Connection, wanted: Mapping[str, Any]) -> None:
    """A filter that is passed over in silence shows somebody else's letters."""
    state = "discarded" if "states" in wanted else "dead"
    for n in (1, 3):
        await put(connection, n)
    await put(
        connection, 2, job=2, state=state, error_class="app.DocumentError", error_message="a limit of 5% passed", **ODD
    )
    await put(connection, 4, job=3, state=state, last_failed_at=BEGAN + timedelta(seconds=2), key=b"key-2", **ODD)

    assert await listed(connection, **wanted) == [2]
    stats = await letter_stats(connection, "shop", LetterFilter(**wanted))
    assert [(each.letters, each.sample.int) for each in stats.groups] == [(1, 2)]


async def test_texts_longer_than_an_index_takes_are_kept_and_found(connection: Connection) -> None:
    """An index that refuses a record's own text would fail the settle of its batch, for ever."""
    wild = "".join(chr(0x10000 + n * 7919 % 0x90000) for n in range(1000))
    await put(connection, 1, event_type=wild, tenant=wild, brand=wild, event_id=wild, key=wild.encode())
    await put(connection, 2, event_type=wild[:-1], tenant=wild[:-1], brand=wild[:-1])

    assert await listed(connection, event_type=wild, tenant=wild, brand=wild, key=wild.encode()) == [1]


async def test_groups_tell_count_first_last_and_the_newest_as_a_sample(connection: Connection) -> None:
    """What one person looks at is a defect, not its thousand letters."""
    for n in range(1, 6):
        await put(connection, n, error_message=f"no {n}")
    await put(connection, 9, fingerprint="e" * 16, reason="handler_failed")

    stats = await letter_stats(connection, "shop", LetterFilter(), limit=1)

    (group,) = stats.groups
    assert (group.job, group.reason, group.letters, group.sample.int) == ("ledger", "rejected", 5, 5)
    assert (group.first_failed_at, group.last_failed_at) == tuple(BEGAN + timedelta(seconds=n) for n in (1, 5))
    assert group.error_message == "no 5"
    assert (stats.all_groups, stats.all_letters) == (2, 6)


async def test_payload_is_nowhere_but_where_it_is_asked_for(connection: Connection) -> None:
    """Personal data is not for whoever may see that something failed; the key is data, too."""
    letter = await put(connection, 1, header_names=[b"auth", b"auth"], header_values=[b"4111", None])

    page = await list_letters(connection, "shop", LetterFilter())
    details = await read_letter(connection, "shop", letter)
    stats = await letter_stats(connection, "shop", LetterFilter())

    told = f"{page}{details}{stats}"
    assert "4111" not in told
    assert "key-1" not in told
    assert (details.key_bytes, details.value_bytes) == (5, len(SECRET))
    assert details.header_names == [b"auth", b"auth"]


async def test_payload_needs_permission_for_the_letters_own_scope_and_is_audited(connection: Connection) -> None:
    """Who saw whose data is the audit's first question. A letter of no tenant may be anybody's."""
    acmes = await read_letter(connection, "shop", await put(connection, 1, tenant="acme"))
    nobodys = await read_letter(connection, "shop", await put(connection, 2))
    limited = Actor("lim", Role.OPERATOR, tenants=frozenset({"acme"}))

    assert (await read_payload(connection, limited, acmes)).value == SECRET
    for actor, letter in ((limited, nobodys), (Actor("eve", Role.VIEWER), acmes)):
        with pytest.raises(Denied):
            await read_payload(connection, actor, letter)

    rows = await connection.fetch("SELECT actor, outcome, target, tenant, parameters FROM tidegate.audit ORDER BY seq")
    assert [(row["actor"], row["outcome"]) for row in rows] == [("lim", "done"), ("lim", "denied"), ("eve", "denied")]
    assert (rows[0]["target"], rows[0]["tenant"]) == (f"letter {acmes.id}", "acme")
    assert "4111" not in str([dict(row) for row in rows])


async def test_a_letter_of_another_service_is_not_there(connection: Connection) -> None:
    """Two services in one database are two worlds."""
    letter = await put(connection, 1, job=3)

    with pytest.raises(Misconfigured, match="'shop' has no dead letter"):
        await read_letter(connection, "shop", letter)


@pytest.mark.parametrize("text", ["", "yesterday/x", "2026-03-01T00:00:00/00000000-0000-0000-0000-000000000001"])
def test_a_page_begins_only_where_one_ended(text: str) -> None:
    """A place without a time zone would be another place on another machine."""
    with pytest.raises(Misconfigured, match="--after"):
        Cursor.parse(text)


# --- many letters ----------------------------------------


@pytest.fixture
async def many(connection: Connection) -> Connection:
    """20,000 letters of two jobs, with a few rare ones among them; statistics and visibility map up to date."""
    await connection.execute(
        """
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", key, value, event_type, tenant, brand, reason, error_class,
            error_message, fingerprint, attempts, first_failed_at, last_failed_at
        )
        SELECT
            gen_random_uuid(), 1 + n % 2, 'orders', '00000000-0000-0000-0000-000000000007', n % 8, n,
            ('key-' || n % 5000)::bytea, convert_to(repeat('x', 300), 'UTF8'),
            CASE WHEN n % 10000 = 7 THEN 'rare' ELSE 'often' END, CASE WHEN n % 10000 = 7 THEN 'rare'
                WHEN n % 20 = 3 THEN 'some' ELSE '' END,
            CASE WHEN n % 10000 = 7 THEN 'rare' ELSE '' END,
            CASE WHEN n % 10000 = 7 THEN 'too_large' ELSE 'rejected' END, 'Rejected', 'no',
            CASE WHEN n % 10000 = 7 THEN 'rare' ELSE 'f' || n % 20 END, 1,
            timestamptz '2026-03-01' + n * interval '1 second', timestamptz '2026-03-01' + n * interval '1 second'
        FROM generate_series(1, 20000) AS n;
        """
    )
    await connection.execute("VACUUM ANALYZE tidegate.dead_letter")
    return connection


FIRST, MIDDLE = (None, None), (BEGAN + timedelta(seconds=10_000), UUID(int=0))
# Number of the parameter, and what it is.
FILTERS = [
    (0, None),
    (3, "too_large"),
    (3, "none-such"),
    (4, "rare"),
    (5, "rare"),
    (6, "rare"),
    (6, "some"),
    (7, "rare"),
    (11, b"key-7"),
]


async def test_a_page_reads_no_more_than_it_shows(many: Connection) -> None:
    """A million letters page as quickly as fifty: with any filter, at the beginning and in the middle."""
    states = [state.value for state in LetterState]
    too_much = {}
    for place in (FIRST, MIDDLE):
        for number, value in FILTERS:
            filters = [value if n == number else None for n in range(3, 12)]
            nodes = await _ran(many, "letters_page", [[1, 2], states, *filters, *place, 51])
            if (read := sum(map(_rows_read, nodes))) > 51 * 2 + 1:  # averages over the loops, rounded
                too_much[place, number, value] = read
    assert too_much == {}


def _rows_read(node: dict[str, Any]) -> float:
    if node.get("Relation Name") != "dead_letter":
        return 0
    return float((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])


async def test_groups_are_counted_from_an_index_alone(many: Connection) -> None:
    """The rows hold the payloads: reading them to count would read everything that ever failed."""
    nodes = await _ran(many, "letter_groups", [[1, 2], ["dead"], *[None] * 9, 50])

    scans = [node for node in nodes if node.get("Relation Name") == "dead_letter" and node["Actual Rows"] > 100]
    assert [(node["Node Type"], node["Heap Fetches"]) for node in scans] == [("Index Only Scan", 0)]


async def _ran(connection: Connection, query: str, arguments: list[Any]) -> list[dict[str, Any]]:
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {_QUERIES[query]}", *arguments)
    return list(_below(json.loads(text)[0]["Plan"]))


def _below(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _below(child)
