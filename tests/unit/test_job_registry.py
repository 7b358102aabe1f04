"""What an App checks of its jobs by the clock, and what the registry tells of every job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from tidegate import (
    App,
    Circuit,
    Context,
    Cron,
    Handler,
    Page,
    Pulled,
    ScheduledJob,
    Scope,
    answer,
    fetch,
    handle,
    handle_batch,
)
from tidegate.commands.dlq_output import say_what_is_not_shown
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob, RateLimit
from tidegate.jobs.registry import registry, unchecked_requests, upkeep_registry
from tidegate_kernel.errors import Misconfigured


@dataclass(frozen=True)
class Orders:
    page: Page


@dataclass(frozen=True)
class Check:
    order: str


async def orders(_: Orders, __: Context[None]) -> list[str]:
    return []


async def check(_: Check, __: Context[None]) -> None:
    return None


async def check_all(_: Any, __: Context[None]) -> None:
    return None


NIGHTLY = ScheduledJob(
    code="nightly",
    trigger=Cron("0 2 * * *", "Europe/Berlin"),
    query=Orders,
    command=Check,
    key=str,
    scopes=[Scope("acme")],
    runbook="docs/runbooks/nightly.md",
    partial_failure="quarantine",
)
HANDLERS = [answer(Orders, orders), handle(Check, check)]


def app(*jobs: ClockJob, handlers: list[Handler] | None = None) -> App:
    return App(service="shop", owner="orders-team", jobs=[], clock_jobs=jobs, handlers=handlers or HANDLERS)


@pytest.mark.parametrize(
    "handlers, told",
    [
        (HANDLERS[:1], r"command becomes Check, which no handler takes; add handle\(Check"),
        (HANDLERS[1:], r"query becomes Orders, which no handler takes; add answer\(Orders"),
        (
            [handle_batch(Orders, check_all), HANDLERS[1]],
            r"query becomes Orders, which another kind of handler takes; use answer",
        ),
    ],
)
def test_request_without_its_handler_is_found_at_the_start(handlers: list[Handler], told: str) -> None:
    """Not at two in the morning, when the first run asks for it."""
    with pytest.raises(Misconfigured, match=f"job 'nightly': {told}"):
        app(NIGHTLY, handlers=handlers)


def test_app_checks_codes_and_needs() -> None:
    """Two jobs of one code would share runs and checkpoints; a need that nothing names could never be probed."""
    with pytest.raises(Misconfigured, match="job code 'nightly' is declared twice"):
        app(NIGHTLY, NIGHTLY)
    with pytest.raises(Misconfigured, match="job 'nightly': needs"):
        app(replace(NIGHTLY, needs=["bank"]))
    with pytest.raises(Misconfigured, match="may hold lower-case letters"):
        app(replace(NIGHTLY, code="Nightly Run"))


GIVEN: Any = {name: getattr(NIGHTLY, name) for name in ("trigger", "query", "command", "key", "scopes", "runbook")}


def sync(code: str = "sync", **fields: Any) -> ProviderSyncJob:
    provider: Any = {"provider": "p", "access": GIVEN["scopes"], "rate_limit": RateLimit(1), "reach_back": timedelta(0)}
    return ProviderSyncJob(**{"code": code, "version": str} | GIVEN | provider | fields)


async def pull(_: Orders, __: None) -> Pulled:
    return Pulled()


FETCHING = [fetch(Orders, pull), HANDLERS[1]]


def test_kind_that_nothing_runs_is_refused() -> None:
    """A declaration that looks alive and never runs would be worse than an error."""
    with pytest.raises(Misconfigured, match="job 'plain': kind ClockJob is declared, and nothing runs such jobs"):
        app(ClockJob(code="plain", partial_failure="stop", **GIVEN))


def test_provider_is_called_by_a_handler_of_fetch_alone() -> None:
    """One of `answer` would call it inside of a transaction; one of `fetch` answers no query of another kind of job."""
    assert app(sync(), handlers=FETCHING).clock_job("sync").code == "sync"
    with pytest.raises(Misconfigured, match=r"job 'sync': query becomes Orders, .* use fetch"):
        app(sync())
    with pytest.raises(Misconfigured, match=r"job 'nightly': query becomes Orders, .* use answer"):
        app(NIGHTLY, handlers=FETCHING)


@pytest.mark.parametrize("rule", [{"rate_limit": RateLimit(2)}, {"circuit": Circuit(failures=1)}], ids=list)
def test_jobs_of_one_provider_have_one_rule(rule: dict[str, Any]) -> None:
    """They share its rate and circuit: which rule holds would depend on who called last."""
    app(sync(), sync("other"), sync("elsewhere", provider="q", **rule), handlers=FETCHING)
    with pytest.raises(Misconfigured, match=f"job 'other': {next(iter(rule))} differs from that of job 'sync'"):
        app(sync(), sync("other", **rule), handlers=FETCHING)


def test_registry_tells_every_field_of_a_job_by_the_clock() -> None:
    """What a person asks at night: what starts it, what it does, how a repeat is kept out, where the runbook is."""
    (entry,) = registry(app(NIGHTLY))

    assert (entry.kind, entry.owner, entry.trigger) == (
        "ScheduledJob",
        "orders-team",
        "0 2 * * * (Europe/Berlin), or by hand",
    )
    assert (entry.query, entry.command, entry.scopes) == ("Orders", "Check", "acme")
    assert entry.lock_key == "job:shop/nightly/{tenant}/{brand}"
    assert (entry.partial_failure, entry.unit, entry.runbook) == ("quarantine", "item", "docs/runbooks/nightly.md")


def test_services_own_upkeep_is_in_the_registry_beside_its_jobs() -> None:
    """What empties tables by itself has to be found where everything that runs is found."""
    shop = app(NIGHTLY)

    told = {entry.code: entry for entry in upkeep_registry(shop)}

    assert list(told) == ["tidegate.inbox", "tidegate.letters", "tidegate.runs", "tidegate.audit"]
    assert told["tidegate.audit"].kind_needs == {
        "retention policy": "TIDEGATE_AUDIT_RETENTION",
        "audit": "each chunk of removals",
    }
    letters = told["tidegate.letters"]
    assert (letters.kind, letters.trigger) == ("MaintenanceJob", "every 1:00:00, or by hand")
    assert letters.kind_needs["retention policy"] == "TIDEGATE_LETTER_RETENTION"
    assert [entry.code for entry in registry(shop)] == ["nightly"], "documents and checks are of the service's own jobs"


def test_upkeep_is_found_by_its_code_and_its_codes_are_nobody_elses() -> None:
    """`tidegate pause tidegate.inbox` must mean it, `--all` the service's jobs, and `tidegate run` no job twice."""
    shop = app(NIGHTLY)

    assert shop.any_job("tidegate.inbox") == shop.clock_job("tidegate.inbox")
    assert shop.codes == ["nightly"]
    with pytest.raises(Misconfigured, match=r"'tidegate\.inbox' is Tidegate's own upkeep: every worker runs it"):
        shop.job("tidegate.inbox")
    with pytest.raises(Misconfigured, match=r"job 'tidegate\.nightly': codes that begin with 'tidegate\.'"):
        app(replace(NIGHTLY, code="tidegate.nightly"))


def test_job_by_the_clock_among_those_on_topics_is_refused_with_its_own_list() -> None:
    """Whoever writes the first one puts it where all jobs have been so far."""
    jobs: list[Any] = [NIGHTLY]

    with pytest.raises(Misconfigured, match=r"job 'nightly' runs by the clock; list it in App\.clock_jobs"):
        App(service="shop", owner="team-orders", jobs=jobs)


def test_code_is_looked_for_among_jobs_of_every_kind() -> None:
    """`tidegate pause` and `tidegate run` take either."""
    shop = app(NIGHTLY)

    assert (shop.any_job("nightly"), shop.clock_job("nightly"), shop.codes) == (NIGHTLY, NIGHTLY, ["nightly"])
    with pytest.raises(Misconfigured, match="has no job 'ledger' by the clock; those are: nightly"):
        shop.clock_job("ledger")
    with pytest.raises(Misconfigured, match=r"has no job 'ledger'; its jobs: nightly$"):
        shop.any_job("ledger")
    with pytest.raises(Misconfigured, match=r"has no job 'ledger'; its jobs: nightly$"):
        shop.job("ledger")
    with pytest.raises(
        Misconfigured, match="'nightly' runs by the clock and reads no topic; 'tidegate jobs runs nightly'"
    ):
        shop.job("nightly")


def test_function_that_does_not_say_what_it_makes_is_named() -> None:
    """Its handler cannot be looked for at the start: `tidegate jobs check` says so."""
    untold = app(replace(NIGHTLY, command=lambda item: Check(item)))

    (said,) = unchecked_requests(untold)

    assert said.startswith("job 'nightly': ")
    assert "annotate what it returns" in said
    assert unchecked_requests(app(NIGHTLY)) == []


def test_job_that_makes_no_letters_of_items_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list would be believed: its items fail all the same, and are shown elsewhere."""
    stopping, quarantining = replace(NIGHTLY, partial_failure="stop"), replace(NIGHTLY, partial_failure="quarantine")
    say_what_is_not_shown(app(quarantining), ["nightly"], 0)
    say_what_is_not_shown(app(stopping), ["nightly", "ledger"], 0)

    by_the_clock, unknown = capsys.readouterr().err.splitlines()
    assert "'nightly' makes no letters of items" in by_the_clock
    assert "'tidegate jobs items nightly'" in by_the_clock
    assert "has no job 'ledger' today" in unknown
