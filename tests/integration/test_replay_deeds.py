"""Runs over dead letters as deeds, on real Postgres: who may begin, resume, stop and approve them, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from dlq.runs import Hold, RunKind, RunState, read_run
from inbox.store import find_job
from tests.integration.parking_bench import BAD, Bench, make_bench, of_key
from tests.integration.replay_bench import ReplayBench
from tests.integration.road import MakeRoad
from tidegate.jobs.replays import (
    Asked,
    Begun,
    FoundRun,
    approve,
    begin,
    find_run,
    refuse_asked,
    refuse_taken,
    resume,
    stop,
)
from tidegate_kernel.errors import AlreadyRunning, Conflict, Denied, Misconfigured
from tidegate_kernel.event import JobCode, JobId, ReplayId, Scope
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

ANNA, BERT = Actor("anna", Role.OPERATOR), Actor("bert", Role.OPERATOR)
VIOLA, ADA = Actor("viola", Role.VIEWER), Actor("ada", Role.ADMIN)
ACME = Actor("acme", Role.OPERATOR, tenants=frozenset({"acme"}))


class Deeds:
    """Somebody's deeds on the letters of a bench."""

    def __init__(self, pool: Pool, replays: ReplayBench) -> None:
        self.pool, self.replays = pool, replays

    async def asked(self, letters: Sequence[UUID] | None = None, **more: Any) -> Asked:
        chosen = await self.replays.letters() if letters is None else letters
        told = {"kind": RunKind.REPLAY, "digest": "d", "reason": "mended"} | more
        return Asked(code=JobCode("notes"), letters=chosen, **told)

    async def begin(self, actor: Actor, asked: Asked | None = None, *, approval_above: int | None = None) -> Begun:
        async with self.pool.acquire() as connection:
            job = await find_job(connection, service="tests", code=JobCode("notes"))
        assert job is not None
        chosen = await self.asked() if asked is None else asked
        return await begin(self.pool, actor, chosen, job=JobId(job), holder="here", approval_above=approval_above)

    async def found(self, run: ReplayId) -> FoundRun:
        return await find_run(self.pool, "tests", run)

    async def state(self, run: ReplayId) -> RunState:
        async with self.pool.acquire() as connection:
            return (await read_run(connection, "tests", run)).state

    async def audit(self) -> list[tuple[str, str, str]]:
        rows = await self.pool.fetch("SELECT actor, action, outcome FROM tidegate.audit ORDER BY seq")
        return [(row["actor"], row["action"], row["outcome"]) for row in rows]

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.pool.fetch("SELECT parameters FROM tidegate.audit ORDER BY seq")
        return [json.loads(row["parameters"]) for row in rows]


@pytest.fixture
async def bench(make_road: MakeRoad) -> Bench:
    made = await make_bench(make_road)
    await made.settle([of_key(n, b"k%d" % n, BAD) for n in range(2)])
    await made.pool.execute("UPDATE tidegate.dead_letter SET tenant = 'acme'")
    return made


@pytest.fixture
def deeds(bench: Bench, pool: Pool, database: str) -> Deeds:
    return Deeds(pool, ReplayBench(pool, database))


async def test_whoever_may_not_begins_nothing(deeds: Deeds) -> None:
    """Case 61: the letters stay as they are, and the audit says who tried. A discard takes an admin."""
    with pytest.raises(Denied, match="role operator"):
        await deeds.begin(VIOLA)
    with pytest.raises(Denied, match="role admin"):
        await deeds.begin(ANNA, await deeds.asked(kind=RunKind.DISCARD))
    with pytest.raises(Denied, match="without a reason"):
        await deeds.begin(ADA, await deeds.asked(reason=" "))

    assert await deeds.replays.states() == ["dead", "dead"]
    expected = [("viola", "dlq:replay", "denied"), ("anna", "dlq:discard", "denied"), ("ada", "dlq:replay", "denied")]
    assert await deeds.audit() == expected


async def test_a_run_is_audited_with_its_number_and_how_its_letters_were_chosen(deeds: Deeds) -> None:
    """Who looks at the audit finds the run, and from the run its letters; nothing of the payload stands there."""
    begun = await deeds.begin(ANNA, await deeds.asked(where={"fingerprint": "f"}))

    assert isinstance(begun.held, Hold)
    [told] = await deeds.told()
    expected = {"letters": 2, "digest": "d", "where": {"fingerprint": "f"}, "forced": False, "run": begun.run}
    assert told == {"what": "begin", "waits": False, **expected}


async def test_token_of_a_tenant_replays_its_own_letters_alone(deeds: Deeds) -> None:
    """G12 for hands: refused with one letter of another's, or of nobody's, or another's event parked behind them."""
    own, other = await deeds.replays.letters()
    await deeds.pool.execute("UPDATE tidegate.dead_letter SET tenant = 'zeta' WHERE id = $1", other)
    asked = await deeds.asked([own], scopes=[Scope("acme"), Scope("zeta")])
    for refused in (await deeds.asked([own, other]), await deeds.asked([other]), asked):
        with pytest.raises(Denied, match="limited to tenants acme"):
            await deeds.begin(ACME, refused)
    await deeds.pool.execute("UPDATE tidegate.dead_letter SET tenant = '' WHERE id = $1", other)
    with pytest.raises(Denied, match="limited to tenants acme"):
        await deeds.begin(ACME, await deeds.asked([other]))

    begun = await deeds.begin(ACME, await deeds.asked([own], scopes=[Scope("acme")]))
    await stop(deeds.pool, ACME, await deeds.found(begun.run), reason="enough")

    tenants = await deeds.pool.fetch("SELECT tenant FROM tidegate.audit WHERE outcome = 'done'")
    assert [row["tenant"] for row in tenants] == ["acme", "acme"]


async def test_the_second_of_two_is_a_conflict_with_a_row_of_its_own(deeds: Deeds) -> None:
    """Case 58: both attempts are in the audit with their actors."""
    begun = await deeds.begin(ANNA)

    with pytest.raises(AlreadyRunning, match=f"run {begun.run}"):
        await deeds.begin(BERT, await deeds.asked(await deeds.replays.letters(states=["replaying"])))
    with pytest.raises(Conflict, match="all of them"):
        await refuse_taken(deeds.pool, BERT, await deeds.asked(), "run 1 has all of them")

    assert await deeds.audit() == [
        ("anna", "dlq:replay", "done"),
        ("bert", "dlq:replay", "failed"),
        ("bert", "dlq:replay", "failed"),
    ]


async def test_above_the_threshold_somebody_else_has_to_agree(deeds: Deeds) -> None:
    """One person's mistake stays a plan: nobody agrees with himself, and nothing begins before."""
    begun = await deeds.begin(ANNA, approval_above=1)
    found = await deeds.found(begun.run)

    assert (begun.held, await deeds.state(begun.run)) == (None, RunState.WAITING)
    with pytest.raises(Misconfigured, match="waits for a second person"):
        await resume(deeds.pool, ANNA, found, holder="here")
    with pytest.raises(Denied, match="somebody else"):
        await approve(deeds.pool, ANNA, found, reason="sure")
    with pytest.raises(Denied, match="without a reason"):
        await approve(deeds.pool, BERT, found, reason="")
    await approve(deeds.pool, BERT, found, reason="looked at it")
    held = await resume(deeds.pool, ANNA, found, holder="here")

    assert (held.run, await deeds.state(begun.run)) == (begun.run, RunState.RUNNING)
    assert [outcome for _, _, outcome in await deeds.audit()] == ["done", "failed", "denied", "denied", "done", "done"]
    assert (await deeds.begin(ANNA, await deeds.asked([]), approval_above=0)).held is not None


async def test_a_run_of_as_many_as_the_threshold_waits_for_nobody(deeds: Deeds) -> None:
    """More than so many: the number itself is what one person may do."""
    assert (await deeds.begin(ANNA, approval_above=2)).held is not None


async def test_who_may_not_stop_or_resume_does_not(deeds: Deeds) -> None:
    """A discard's run is an admin's in all that is done to it."""
    begun = await deeds.begin(ADA, await deeds.asked(kind=RunKind.DISCARD))
    found = await deeds.found(begun.run)

    with pytest.raises(Denied, match="role admin"):
        await stop(deeds.pool, ANNA, found, reason="load")
    with pytest.raises(Denied, match="role admin"):
        await resume(deeds.pool, ANNA, found, holder="there")
    with pytest.raises(AlreadyRunning, match="in the hands of here"):
        await resume(deeds.pool, ADA, found, holder="there")
    assert not await stop(deeds.pool, ADA, found, reason="load"), "its runner ends it"
    await deeds.pool.execute("UPDATE tidegate.replay SET lease_until = now()")
    assert await stop(deeds.pool, ADA, found, reason="load"), "there is no runner"

    assert await deeds.state(begun.run) == RunState.STOPPED
    assert await deeds.replays.states() == ["dead", "dead"]
    with pytest.raises(Misconfigured, match="no run 4711"):
        await deeds.found(ReplayId(4711))


async def test_what_will_be_refused_is_refused_before_anything_is_opened(deeds: Deeds) -> None:
    """Connecting to sinks for somebody who may not do it anyway helps nobody."""
    with pytest.raises(Denied):
        await refuse_asked(deeds.pool, VIOLA, await deeds.asked())
    await refuse_asked(deeds.pool, ANNA, await deeds.asked())

    assert await deeds.audit() == [("viola", "dlq:replay", "denied")]
