"""The short form of `make chaos`: a minute of faults on real servers, then the audit, then damage that it must find."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import httpx
import pytest
import pytest_asyncio

from tests.chaos import servers
from tests.chaos.auditor import expected
from tests.chaos.auditor.audit import audit
from tests.chaos.auditor.found import Addresses, read_everything
from tests.chaos.auditor.verdict import Verdict, Wrong
from tests.chaos.auditor.written import Written, compare_logs, read_producers_log
from tests.chaos.faults import QUICK
from tests.chaos.run import Plan, Report, addresses, fresh_folder, run
from tests.chaos.scene import Scene, scene

# Starting four servers, a minute of faults and two audits on a machine that does other things as well.
pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(bool(servers.missing()), reason="the chaos suite starts servers of its own from packages"),
]

_PLAN = Plan(seconds=30, seed=7, faults=QUICK, least_kinds=8, least_per_minute=3000, longest_pause=0.5)
_RATE = 200.0

_DOUBLE = """
INSERT INTO effect (event_id, key, version, cents)
SELECT event_id, key, version, cents FROM effect WHERE event_id = $1
"""
_FORGET_A_LETTER = """
DELETE FROM tidegate.dead_letter
WHERE id = (
    SELECT l.id
    FROM tidegate.dead_letter AS l
    JOIN tidegate.job AS j ON j.id = l.job
    WHERE j.code = 'report'
    LIMIT 1
)
"""
# The first effect of a key gets the last number.
_PUT_FIRST_LAST = """
WITH first AS (DELETE FROM effect WHERE event_id = $1 RETURNING event_id, key, version, cents)
INSERT INTO effect (event_id, key, version, cents) SELECT event_id, key, version, cents FROM first
"""


@dataclass(frozen=True)
class Struck:
    """A run that is over, with its servers still up."""

    scene: Scene
    report: Report

    @property
    def log(self) -> Path:
        return self.scene.folder / "producer.jsonl"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def struck(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Struck]:
    folder = fresh_folder(tmp_path_factory.mktemp("chaos") / "run")
    async with scene(folder, seed=_PLAN.seed, rate=_RATE) as stage:
        report = await run(stage, _PLAN)
        print(*report.lines(), sep="\n")
        yield Struck(stage, report)
    if report.is_good:
        servers.wipe(folder)


async def test_nothing_is_lost_doubled_or_stale_under_faults(struck: Struck) -> None:
    """G1 to G6, G9 and G10 on real servers: kills, frozen processes, restarts, broken and silent networks."""
    assert struck.report.verdict.summary == (
        "lost 0, doubled 0, stale 0, resurrected 0, out of order 0, unexplained 0"
    ), "\n".join(struck.report.lines())
    assert struck.report.complaints == [], "\n".join(struck.report.lines())


async def test_faults_struck_records_in_flight(struck: Struck) -> None:
    """A fault that hits an idle worker proves nothing."""
    assert len(struck.report.kinds) >= 8
    assert struck.report.verdict.records > 3000


async def test_auditor_rejects_a_damaged_database(struck: Struck) -> None:
    """Each wound is named: a run that finds nothing is worth what its auditor can find."""
    at = addresses(struck.scene)
    found, sources, ends = await read_everything(at)
    written = compare_logs(read_producers_log(struck.log), sources, ends)
    wounds = Wounds.chosen(written)

    damaged = replace(at, postgres=await _damaged_copy(at, wounds))
    await _damage_sinks(at, wounds)
    verdict = await audit(damaged, struck.log)

    assert _unnamed(verdict, wounds) == []
    assert len(found.effects) == verdict.events


@dataclass(frozen=True)
class Wounds:
    """Whom each wound hits. `events` are the ids of the first three, named as the auditor names them."""

    events: Sequence[str]
    lost_effect: str
    doubled_effect: str
    lost_claim: str
    lost_claim_id: uuid.UUID
    rewound_document: str
    rewound_row: str
    resurrected: str
    out_of_order: str
    out_of_order_key: str

    @classmethod
    def chosen(cls, written: Written) -> Wounds:
        orders = {key: order for key, order in expected.order_of_keys(written).items() if len(order) > 2}
        key = min(orders)
        spare = [event for other, order in sorted(orders.items()) if other != key for event in order]
        told = expected.events(written)
        newest = expected.newest(written)
        alive = sorted(key for key, state in newest.items() if state.document is not None)
        name = [f"{told[event].kind} {event!r}" for event in spare]
        return cls(
            events=spare[:3],
            lost_effect=name[0],
            doubled_effect=name[1],
            lost_claim=name[2],
            lost_claim_id=expected.claim(told[spare[2]])[1],
            rewound_document=alive[0],
            rewound_row=alive[1],
            resurrected=next(key for key, state in sorted(newest.items()) if state.document is None),
            out_of_order=orders[key][0],
            out_of_order_key=key,
        )

    def sentences(self) -> dict[Wrong, list[str]]:
        """What the auditor has to say of each."""
        return {
            Wrong.LOST: [
                f"no effect of {self.lost_effect}",
                f"no claim of {self.lost_claim}",
                "no report: dead letter",
            ],
            Wrong.DOUBLED: [f"2 effects of {self.doubled_effect}"],
            Wrong.STALE: [f"search: {self.rewound_document!r} should be", f"report: {self.rewound_row!r} should be"],
            Wrong.RESURRECTED: [f"search: {self.resurrected!r} was removed"],
            Wrong.OUT_OF_ORDER: [f"effects of key {self.out_of_order_key!r}"],
        }


def _unnamed(verdict: Verdict, wounds: Wounds) -> list[str]:
    return [
        f"{wrong}: {part}"
        for wrong, parts in wounds.sentences().items()
        for part in parts
        if not any(part in sentence for sentence in verdict.differences[wrong])
    ]


async def _damaged_copy(at: Addresses, wounds: Wounds) -> str:
    """The DSN of a copy of the database with wounds in it."""
    server = at.postgres.rpartition("/")[0]
    administrator = await asyncpg.connect(f"{server}/postgres")
    await administrator.execute("CREATE DATABASE damaged TEMPLATE tidegate")
    await administrator.close()
    connection = await asyncpg.connect(f"{server}/damaged")
    try:
        await connection.execute("DELETE FROM effect WHERE event_id = $1", wounds.events[0])
        await connection.execute(_DOUBLE, wounds.events[1])
        await connection.execute("DELETE FROM tidegate.inbox WHERE id = $1", wounds.lost_claim_id)
        await connection.execute(_FORGET_A_LETTER)
        await connection.execute(_PUT_FIRST_LAST, wounds.out_of_order)
    finally:
        await connection.close()
    return f"{server}/damaged"


async def _damage_sinks(at: Addresses, wounds: Wounds) -> None:
    """A document and a row are older than they were, and something removed is back, all under high versions."""
    high = 2**40
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        for key in (wounds.rewound_document, wounds.resurrected):
            url = f"{at.elasticsearch}/chaos-g1/_doc/{key}?version={high}&version_type=external_gte"
            old = {"key": key, "version": 1, "cents": 1, "event_id": "old"}
            (await http.put(url, json=old)).raise_for_status()
        row = f"'{wounds.rewound_row}', 1, 1, 'old', {high}, 0"
        statement = f"INSERT INTO chaos_g1 (key, version, cents, event_id, tg_version, tg_deleted) VALUES ({row})"
        (await http.post(at.clickhouse, content=statement)).raise_for_status()
