"""How a provider is called: who may, how often, when it is left alone, and with what that nobody gets to read."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import traceback
from collections import deque
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog

from examples.shop.catalogue.provider_server import Fault
from tests.integration.clockwork import until
from tests.integration.disc_company import KEY, VINYL, Records, catalogue_job, record_shop
from tidegate import Circuit, RateLimit, Rejected, Scope, TidegateError
from tidegate.jobs.clockwork.host import ClockHost, Pace
from tidegate.jobs.clockwork.provider import calling, http
from tidegate.jobs.clockwork.provider.gate import Gate
from tidegate.jobs.clockwork.requests import RunRequest, ask_for_run
from tidegate.jobs.clockwork.runner import work_off
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.errors import Denied
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.permissions import Actor, Role
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

CASCADE = Scope("cascade", "vinyl")
PATIENT = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
async def shop(pool: Pool, database: str, tmp_path: Path) -> AsyncIterator[Records]:
    async with record_shop(pool, database, tmp_path / "keys.json") as opened:
        yield opened


def gate(pool: Pool, *, rate: RateLimit = RateLimit(10_000), circuit: Circuit = Circuit(), name: str = "p") -> Gate:  # noqa: B008  # both are frozen
    hour = timedelta(hours=1)
    return Gate(pool, service="shop", provider=name, rate_limit=rate, circuit=circuit, call_timeout=hour)


async def audited(pool: Pool) -> list[tuple[Any, ...]]:
    rows = await pool.fetch("SELECT actor, action, target, tenant, brand, outcome FROM tidegate.audit ORDER BY seq")
    return [tuple(row) for row in rows]


async def test_tenant_that_is_not_listed_is_refused_before_any_call(shop: Records) -> None:
    """G12: a source of scopes names a tenant without a contract. Its run fails for good, the audit says so, and the
    provider never hears of it, although there is a key."""

    async def all_of_them(_: object) -> list[Scope]:
        return [CASCADE]

    shop.company.keys = {"cascade": "key-of-cascade"}
    shop.company.sell("vinyl", "d1")

    assert await shop.sync(catalogue_job(scopes=all_of_them)) is RunState.FAILED

    row = await shop.run()
    assert (row["trigger"], row["error_class"]) == ("schedule", "tidegate_kernel.errors.Denied"), "and no retry"
    assert "tenant 'cascade' has no access to provider 'disc-company'" in row["error_message"]
    assert (shop.company.asked, await shop.discs("cascade")) == ([], {})
    assert await audited(shop.pool) == [
        ("shop worker", "run:trigger", "shop.disc-catalogue", "cascade", "vinyl", "denied")
    ]


async def test_run_by_hand_for_a_tenant_that_is_not_listed_is_refused_and_audited(shop: Records) -> None:
    """An operator's token opens no provider."""

    async def all_of_them(_: object) -> list[Scope]:
        return [CASCADE]

    asked = RunRequest(job=catalogue_job(scopes=all_of_them), scope=CASCADE, at=shop.clock.now(), reason="please")
    with pytest.raises(Denied, match="has no access to provider 'disc-company'"):
        await ask_for_run(shop.pool, Actor("alice", Role.OPERATOR), "shop", asked, now=shop.clock.now())

    assert await audited(shop.pool) == [("alice", "run:trigger", "shop.disc-catalogue", "cascade", "vinyl", "denied")]
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run") == 0


async def test_calls_of_all_processes_have_places_in_one_row(pool: Pool) -> None:
    """Two processes, a call a minute: twenty calls have places a minute apart, whoever asks."""
    minutely = RateLimit(1, timedelta(minutes=1))
    gates = [gate(pool, rate=minutely), gate(pool, rate=minutely)]

    admissions = await asyncio.gather(*(gates[number % 2].admit(patience=PATIENT) for number in range(20)))

    assert all(admission.is_admitted for admission in admissions)
    waits = sorted(admission.wait_seconds for admission in admissions)
    assert all(30 < later - earlier < 90 for earlier, later in pairwise(waits)), "half a minute for slow statements"


async def test_nobody_takes_a_place_that_he_does_not_wait_for(pool: Pool) -> None:
    """A run that is put back would leave a hole in the row for each look."""
    slow = gate(pool, rate=RateLimit(1, timedelta(hours=1)))
    first = await slow.admit(patience=SECOND)

    refused = [await slow.admit(patience=SECOND) for _ in range(5)]

    assert first.is_admitted
    assert not any(each.is_admitted for each in refused)
    assert all(3000 < each.wait_seconds <= 3600 for each in refused)


async def test_providers_and_services_do_not_wait_for_each_other(pool: Pool) -> None:
    """Each has a row of its own."""
    hour = RateLimit(1, timedelta(hours=1))
    for name in ("one", "two"):
        assert (await gate(pool, rate=hour, name=name).admit(patience=SECOND)).is_admitted


async def test_pause_holds_for_everybody_and_a_shorter_one_does_not_end_it(pool: Pool) -> None:
    """429 to one process is for all; what another was told meanwhile does not shorten it."""
    one, two = gate(pool), gate(pool)
    await one.admit(patience=SECOND)
    await one.pause(3600)
    await two.pause(1)

    admission = await two.admit(patience=SECOND)

    assert not admission.is_admitted
    assert 3000 < admission.wait_seconds <= 3600
    assert await two.is_left_alone()


async def test_circuit_opens_after_failures_in_a_row_and_lets_one_call_try(pool: Pool) -> None:
    """Half-open: of all processes one call tries. It fails: the rest is twice as long. It is answered: all may call."""
    rule = Circuit(failures=3, rest=timedelta(hours=1), longest_rest=timedelta(hours=8))
    one, two = gate(pool, circuit=rule), gate(pool, circuit=rule)
    calls = [await one.admit(patience=SECOND) for _ in range(5)]
    for number in (0, 1):
        await one.failed(calls[number])
    await two.answered(calls[2])  # not in a row any more
    for number in (0, 1):
        await two.failed(calls[number])
    assert await one.is_closed()

    await one.failed(calls[3])
    refused = await two.admit(patience=SECOND)
    assert not await two.is_closed()
    assert (refused.is_admitted, 3000 < refused.wait_seconds <= 3600) == (False, True)
    await one.answered(calls[4])
    assert not await one.is_closed(), "what was under way before it opened says nothing of now"

    await pool.execute("UPDATE tidegate.provider SET trial_at = clock_timestamp()")
    tries = [await each.admit(patience=SECOND) for each in (one, two, one)]
    assert [each.is_trial for each in tries] == [each.is_admitted for each in tries] == [True, False, False]
    await one.failed(tries[0])
    refused = await two.admit(patience=SECOND)
    assert 3600 < refused.wait_seconds <= 7200

    await pool.execute("UPDATE tidegate.provider SET trial_at = clock_timestamp()")
    (tried,) = [await two.admit(patience=SECOND)]
    await two.answered(tried)
    assert tried.is_trial
    assert (await one.admit(patience=SECOND)).is_admitted
    assert await pool.fetchval("SELECT rests FROM tidegate.provider") == 0


async def test_provider_that_is_away_is_left_alone_and_nothing_pays_for_it(shop: Records) -> None:
    """Failures in a row open the circuit for all processes: the run waits, no attempt is burnt, no call is made, the
    metric says so. Then one call tries, and the run goes on where it was."""
    job = catalogue_job(circuit=Circuit(failures=2, rest=timedelta(hours=1), longest_rest=timedelta(hours=1)))
    for number in range(10):
        shop.clock.move(seconds=1)
        shop.company.sell("vinyl", f"d{number}")
    shop.company.faults += [Fault(503)] * 2
    scheduler = await shop.scheduler(job)
    hands = shop.hands(job)
    is_open = shop.metrics.breaker_open.labels("disc-catalogue", "disc-company")

    assert await work_off(hands, await shop.due(scheduler)) is RunState.DUE
    assert (len(shop.pages), is_open._value.get()) == (2, 1)
    shop.clock.move(minutes=1)
    assert await work_off(shop.hands(job), await shop.claimed(scheduler)) is RunState.DUE, "also in another process"
    assert len(shop.pages) == 2
    row = await shop.run()
    rest = row["due_at"] - shop.clock.now()
    assert (row["attempt"], timedelta(minutes=50) < rest <= timedelta(hours=1)) == (1, True)

    await shop.pool.execute("UPDATE tidegate.provider SET trial_at = clock_timestamp()")
    shop.clock.move(hours=1)
    run = await shop.claimed(scheduler)
    assert await work_off(hands, run) is RunState.DONE
    assert len(await shop.discs()) == 10
    host = ClockHost(scheduler, {run.job: hands}, clock=shop.clock, metrics=shop.metrics, pace=Pace())
    looking = asyncio.create_task(host.run(shop.stop))
    await until(lambda: is_closed(shop.metrics))
    shop.stop.set()
    await looking


async def is_closed(metrics: Metrics) -> bool:
    return bool(metrics.breaker_open.labels("disc-catalogue", "disc-company")._value.get() == 0)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_provider_that_wants_to_be_left_alone_is(shop: Records, form: str) -> None:
    """429 with Retry-After, as seconds or as a date by the provider's own clock: the run is put back for so long, no
    attempt is burnt, and no other process calls either."""
    at = shop.clock.now() + timedelta(minutes=15, seconds=900)
    told = {"seconds": "900", "date": at.strftime("%a, %d %b %Y %H:%M:%S GMT")}[form]
    now = (shop.clock.now() + timedelta(minutes=15)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    shop.company.sell("vinyl", "d1")
    shop.company.faults += [Fault(429, {"Retry-After": told, "Date": now})]
    job = catalogue_job()

    assert await shop.sync(job) is RunState.DUE

    row = await shop.run()
    rest = row["due_at"] - shop.clock.now()
    assert (len(shop.pages), row["attempt"]) == (1, 1)
    assert timedelta(minutes=14) < rest <= timedelta(minutes=15)
    shop.clock.move(minutes=16)
    assert await work_off(shop.hands(job), await shop.claimed(await shop.scheduler(job))) is RunState.DUE
    assert len(shop.pages) == 1, "by Postgres's clock it is not over yet"
    await shop.pool.execute("UPDATE tidegate.provider SET paused_until = clock_timestamp()")
    shop.clock.move(minutes=16)
    assert await work_off(shop.hands(job), await shop.claimed(await shop.scheduler(job))) is RunState.DONE
    assert await shop.discs() == {"d1": 999}


async def test_short_pause_is_waited_for(shop: Records) -> None:
    """A second is no reason to give the run back."""
    shop.company.sell("vinyl", "d1")
    shop.company.faults += [Fault(429, {"Retry-After": "0"})]

    assert await shop.sync(catalogue_job()) is RunState.DONE
    assert len(shop.pages) == 2


async def test_short_pauses_without_end_give_the_run_back(shop: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is waited for, all of them are not: the run would keep its place in the process, and nobody who pauses or
    cancels it would be heard, until it had taken too long and paid an attempt."""
    monkeypatch.setattr(calling, "PATIENCE", 1.5 * SECOND)
    shop.company.faults += [Fault(429, {"Retry-After": "0"})] * 8
    job = catalogue_job()

    assert await shop.sync(job) is RunState.DUE

    row = await shop.run()
    assert (row["attempt"], row["state"], row["due_at"] > shop.clock.now()) == (1, "due", True)
    assert len(shop.pages) < 8


async def test_cancelled_run_ends_while_the_provider_wants_to_be_left_alone(
    shop: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not put back, to be claimed once more only to hear of it."""
    monkeypatch.setattr(calling, "PATIENCE", 1.5 * SECOND)
    shop.company.faults += [Fault(429, {"Retry-After": "0"})] * 8

    async def cancel() -> None:
        await shop.pool.execute("UPDATE tidegate.job_run SET cancel_asked_by = 'alice'")

    shop.company.before_answer = cancel

    assert await shop.sync(catalogue_job()) is RunState.CANCELLED
    assert (len(shop.pages) < 8, await shop.has_cursor()) == (True, False)


async def test_refusal_of_the_provider_ends_the_run_for_good(shop: Records) -> None:
    """A key that is wrong is wrong at the second try, too, and may be locked at the third. A redirect is not followed:
    it would take the key elsewhere."""
    for status in (400, 401, 403, 302):
        shop.company.faults = deque([Fault(status, {"Location": f"{shop.url}/elsewhere"})] * 2)
        assert await shop.sync(catalogue_job(code=f"sync-{status}")) is RunState.FAILED

    assert len(shop.pages) == 4
    assert await shop.pool.fetchval("SELECT count(*) FROM tidegate.job_run") == 4, "and no retry"


async def test_what_may_be_over_soon_is_tried_again(shop: Records) -> None:
    """A proxy's page in the place of an answer, an error, a connection that is cut off."""
    for number, fault in enumerate((Fault(200, body="<html>busy</html>"), Fault(500), Fault(None)), start=1):
        shop.company.sell("vinyl", f"d{number}")
        shop.company.faults.append(fault)
        assert await shop.sync(catalogue_job()) is RunState.DONE
        assert (len(shop.pages), len(await shop.discs())) == (2 * number, number)


async def test_page_without_end_is_refused(shop: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a provider sends, by mistake or packed, must not fill the memory of the process."""
    monkeypatch.setattr(http, "LONGEST_BODY", 1000)
    shop.company.faults += [Fault(200, body="[" + "0," * 500 + "0]"), Fault(200, body='"' + "x" * 998 + '"')]

    with pytest.raises(Rejected, match="more than 1000 bytes"):
        await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})
    assert (await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})).content == "x" * 998


async def test_etag_that_no_database_takes_is_left(shop: Records) -> None:
    """A byte beyond ASCII in a header of somebody else ended the process's part that runs jobs, and all runs in it."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        head = b'HTTP/1.1 200 OK\r\nETag: "caf\xe9"\r\nContent-Length: 12\r\nConnection: close\r\n\r\n'
        writer.write(head + b'{"discs":[]}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        api = replace(shop.deps.discs.api, url=f"http://127.0.0.1:{port}")
        shop.deps = replace(shop.deps, discs=replace(shop.deps.discs, api=api))
        states = [await shop.sync(catalogue_job()) for _ in range(2)]

    assert (states, len(asked)) == ([RunState.DONE] * 2, 2)
    assert (await shop.cursor())["etag"] is None
    assert b"If-None-Match" not in asked[1]


async def test_cookie_of_one_tenant_is_not_sent_for_another(shop: Records) -> None:
    """G12: a session that the provider gave to a tenant would show its catalogue to all."""
    # By its name: for an address no client keeps cookies.
    api = replace(shop.deps.discs.api, url=shop.url.replace("127.0.0.1", "localhost"))
    shop.company.faults += [Fault(200, {"Set-Cookie": "session=aurora"}, body="[]")]
    for _ in range(2):
        await api.get("/v1/discs", scope=VINYL, params={"brand": "vinyl"})

    assert [asked.get("cookie") for asked in shop.company.asked] == [None, None]


async def test_key_is_read_anew_for_each_call(shop: Records) -> None:
    """A key that was changed counts at once, without a restart."""
    shop.company.keys = {"aurora": "the new one"}
    shop.company.sell("vinyl", "d1")
    assert await shop.sync(catalogue_job(run_attempts=1)) is RunState.FAILED

    keys = shop.deps.discs.keys.file
    assert keys is not None
    keys.write_text(json.dumps({"aurora": "the new one"}))
    assert await shop.sync(catalogue_job()) is RunState.DONE
    assert await shop.discs() == {"d1": 999}


async def test_key_stands_nowhere_that_anybody_reads(shop: Records) -> None:
    """The provider repeats our key in every error of its own, and answers in every way it can; neither logs, errors and
    their contexts, reprs nor a row of the database hold it."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(told))
    statuses = (400, 401, 403, 410, 418, 429, 500, 503, None)
    try:
        with redirect_stdout(told), redirect_stderr(told):
            for status in statuses:
                # The client asks once more by itself where a connection was cut off.
                shop.company.faults += [Fault(status, {"Retry-After": "0"})] * (2 if status is None else 1)
                told.write(await failure_of_a_call(shop))
                shop.company.faults.append(Fault(status, {"Retry-After": "0"}))
                await shop.sync(catalogue_job(code=f"sync-{status or 0}", run_attempts=1))
            told.write(f"{shop.deps!r} {shop.deps!s} {shop.hands(catalogue_job())!r}")
    finally:
        logging.getLogger().removeHandler(handler)
        structlog.reset_defaults()

    assert len(shop.company.asked) >= 2 * len(statuses)
    assert {asked["tenant"] for asked in shop.company.asked} == {"aurora"}, "the key was sent"
    assert "run.started" in told.getvalue(), "the search finds what is there"
    assert KEY not in told.getvalue()
    assert KEY not in await everything(shop.pool)


async def failure_of_a_call(shop: Records) -> str:
    """The traceback of what a call raises, with all that it was raised from."""
    with pytest.raises(TidegateError) as raised:
        await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})
    assert raised.value.__context__ is None
    return "".join(traceback.format_exception(raised.value))


async def everything(pool: Pool) -> str:
    """All rows of Tidegate's tables, as text."""
    names = await pool.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'tidegate'")
    rows = [await pool.fetch(f"SELECT t::text AS t FROM tidegate.{row['tablename']} AS t") for row in names]
    found = " ".join(row["t"] for table in rows for row in table)
    assert "sync-500" in found, "the search finds what is there"
    return found


async def test_key_that_cannot_stand_in_a_header_is_refused_without_a_word_of_it(shop: Records) -> None:
    """A key file with a line break at its end would be an injected header."""
    file = shop.deps.discs.keys.file
    assert file is not None
    for key in ("two\nlines", "with\0nul", "bell\a"):
        file.write_text(json.dumps({"aurora": key}))
        with pytest.raises(Rejected, match="cannot stand in a header") as told:
            await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})
        assert key not in str(told.value)
    assert shop.company.asked == []


async def test_missing_or_broken_key_file_says_which_and_nothing_of_it(shop: Records) -> None:
    """What stands in the file is a secret even where it is no JSON."""
    keys = shop.deps.discs.keys.file
    assert keys is not None
    keys.write_text('{"aurora": "half a sec')
    with pytest.raises(Rejected, match=r"keys\.json cannot be read \(DecodeError\)") as told:
        await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})
    assert "half a" not in "".join(traceback.format_exception(told.value))

    keys.write_text("{}")
    with pytest.raises(Rejected, match="there is no key of the disc company for tenant 'aurora'"):
        await shop.deps.discs.api.get("/v1/discs", scope=VINYL, params={})
    assert not shop.deps.discs.keys.has(VINYL)
