"""What a job by the clock has to say of itself, and what follows from its kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.jobs.clockwork.declaration import Occasion, ScheduledJob
from tidegate.jobs.clockwork.maintenance_job import ByRule, MaintenanceJob
from tidegate.jobs.clockwork.provider.declaration import Circuit, ProviderSyncJob, RateLimit
from tidegate.jobs.clockwork.schedule import Cron, Every
from tidegate.jobs.clockwork.scopes import AcrossScopes, lock_name, scopes_of
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import NO_SCOPE, JobCode, Scope

ACME, ZEBRA = Scope("acme"), Scope("zebra", "kids")
NIGHT = datetime(2026, 5, 1, 2, tzinfo=UTC)

NEEDED: dict[str, Any] = {
    "code": "reconcile",
    "trigger": Cron("0 2 * * *", "UTC"),
    "query": lambda page: page,
    "command": lambda item: item,
    "key": str,
    "scopes": [ACME],
    "runbook": "docs/runbooks/reconcile.md",
    "partial_failure": "stop",
}
PROVIDER: dict[str, Any] = {
    "provider": "catalogue",
    "access": [ACME],
    "rate_limit": RateLimit(5),
    "reach_back": timedelta(minutes=5),
    "version": str,
}


@pytest.mark.parametrize("field", sorted(set(NEEDED) - {"code"}))
def test_what_only_the_owner_knows_is_asked_for_by_job_and_field(field: str) -> None:
    """A default here would be a guess about somebody's business."""
    given = {name: value for name, value in NEEDED.items() if name != field}

    with pytest.raises(Misconfigured, match=f"job 'reconcile': {field} is missing; a ScheduledJob needs it"):
        ScheduledJob(**given)


@pytest.mark.parametrize("field", sorted(PROVIDER))
def test_provider_job_needs_more(field: str) -> None:
    """Access, rate and how far to read back are the provider's and the owner's to say."""
    given = {name: value for name, value in (NEEDED | PROVIDER).items() if name != field}

    with pytest.raises(Misconfigured, match=f"{field} is missing; a ProviderSyncJob needs it"):
        ProviderSyncJob(**given)


@pytest.mark.parametrize(
    "field, value",
    [
        ("provider", ""),
        ("provider", "the provider"),
        ("access", []),
        ("reach_back", timedelta(seconds=-1)),
        ("scopes", [ACME, ZEBRA]),
    ],
)
def test_nonsense_of_a_provider_is_refused_by_job_and_field(field: str, value: object) -> None:
    """A scope that access does not list would fail each night; it is refused at the start."""
    with pytest.raises(Misconfigured, match=f"job 'reconcile': {field}"):
        ProviderSyncJob(**NEEDED | PROVIDER | {field: value})


async def answer_page(page: object) -> object:
    return page


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("trigger", "0 2 * * *", "must be a Cron, an Every or None"),
        ("key", "order_id", "must be a function, not 'order_id'"),
        ("version", 3, "must be a function"),
        ("query", answer_page, "is 'async def'"),
        ("scopes", ["acme"], "must be a list of tenants"),
        ("scopes", ACME, "must be a list of tenants"),
        ("access", "acme", "must be a list of tenants"),
    ],
)
def test_what_only_a_type_checker_would_refuse_is_refused_without_one(field: str, value: object, said: str) -> None:
    """Else it shows in the first night: as an AttributeError, or as a run that fails for each tenant."""
    with pytest.raises(Misconfigured, match=f"job 'reconcile': {field} {said}"):
        ProviderSyncJob(**NEEDED | PROVIDER | {field: value})


def test_circuit_that_never_opens_or_rests_is_refused() -> None:
    """Zero failures or no rest would be no breaker."""
    for wrong in ({"failures": 0}, {"rest": timedelta(0)}, {"longest_rest": timedelta(seconds=1)}):
        with pytest.raises(Misconfigured, match="must be positive"):
            Circuit(**wrong)


def test_item_of_a_provider_is_done_once_for_each_version() -> None:
    """Runs overlap by reach_back: what they read again is the same item, until it has changed."""
    job = ProviderSyncJob(**NEEDED | PROVIDER | {"version": lambda item: f"v{len(item)}"})
    tonight, tomorrow = (Occasion(JobCode("reconcile"), ACME, NIGHT + timedelta(days=n)) for n in (0, 1))

    assert job.item_identity("o1", tonight) == job.item_identity("o1", tomorrow) == "o1 v2"
    assert not job.forgets_items, "what is forgotten would be done again when it is read again"


@pytest.mark.parametrize(
    "one, other", [(("lp", "1 mono"), ("lp 1", "mono")), (("lp 1", "v"), ("lp%201", "v")), (("", "a b"), (" a", "b"))]
)
def test_items_of_a_provider_whose_words_join_alike_are_two(one: tuple[str, str], other: tuple[str, str]) -> None:
    """A provider's keys and versions hold what they like: the second of two that are taken for one would be lost."""
    words = {"key": lambda item: item[0], "version": lambda item: item[1]}
    job = ProviderSyncJob(**NEEDED | PROVIDER | words)
    occasion = Occasion(JobCode("reconcile"), ACME, NIGHT)

    assert job.item_identity(one, occasion) != job.item_identity(other, occasion)


@pytest.mark.parametrize("field", ["retention", "is_sensitive"])
def test_maintenance_job_needs_more(field: str) -> None:
    """What is kept for how long, and whether it is somebody's data."""
    given = NEEDED | {"retention": timedelta(days=30), "is_sensitive": True}
    del given[field]

    with pytest.raises(Misconfigured, match=f"{field} is missing"):
        MaintenanceJob(**given)


@pytest.mark.parametrize(
    "field, value",
    [
        ("runbook", ""),
        ("partial_failure", "ignore"),
        ("unit", "page"),
        ("checkpoint", "day"),
        ("batch_size", 0),
        ("run_attempts", 0),
        ("jitter", timedelta(seconds=-1)),
        ("run_retry_delay", timedelta(seconds=-1)),
        ("handler_timeout", timedelta(0)),
        ("handler_timeout", timedelta(hours=2)),
        ("scopes", []),
        ("scopes", [ACME, NO_SCOPE]),
        ("key_order", "descending"),
        ("handler_timeout", timedelta.max),
        ("max_duration", timedelta.max),
        ("history", timedelta.max),
        ("jitter", timedelta.max),
        ("run_retry_delay", 60),
        ("freshness_sla", timedelta(0)),
        ("freshness_sla", timedelta.max),
        ("freshness_sla", timedelta(days=31)),
        ("freshness_sla", 3600),
    ],
)
def test_nonsense_is_refused_by_job_and_field(field: str, value: object) -> None:
    """At the start, and not at two in the morning."""
    with pytest.raises(Misconfigured, match=f"job 'reconcile': {field}"):
        ScheduledJob(**NEEDED | {field: value})


def test_freshness_is_promised_of_runs_by_the_clock_alone() -> None:
    """Of runs by hand alone nobody can say that one is late; and a run that history forgets proves nothing."""
    with pytest.raises(Misconfigured, match="job 'reconcile': freshness_sla needs a trigger"):
        ScheduledJob(**NEEDED | {"trigger": None, "freshness_sla": timedelta(hours=1)})

    assert ScheduledJob(**NEEDED, freshness_sla=timedelta(hours=26)).freshness_sla == timedelta(hours=26)


@pytest.mark.parametrize("retention", [None, 30, timedelta.max, timedelta(days=-1), timedelta(0)])
def test_retention_that_says_nothing_is_refused_with_its_remedy(retention: object) -> None:
    """Without a time its query would be asked for everything; one without end breaks at the first run."""
    given = NEEDED | {"is_sensitive": True, "retention": retention}

    with pytest.raises(Misconfigured, match=r"^job 'reconcile': retention must be .*(ByRule\(words\)|needs no job)"):
        MaintenanceJob(**given)


def test_provider_rules_that_never_end_are_refused() -> None:
    """Each is added to a moment; one that has no end breaks there, at the first call."""
    with pytest.raises(Misconfigured, match="job 'reconcile': reach_back must be 36500 days at most"):
        ProviderSyncJob(**NEEDED | PROVIDER | {"reach_back": timedelta.max})
    with pytest.raises(Misconfigured, match="a time that ends"):
        RateLimit(1, per=timedelta.max)
    with pytest.raises(Misconfigured, match="a time that ends"):
        Circuit(longest_rest=timedelta.max)
    with pytest.raises(Misconfigured, match="at most"):
        Every(timedelta.max)


@pytest.mark.parametrize("field, value", [("retention", timedelta(0)), ("checkpoint", "job")])
def test_maintenance_that_would_remove_too_much_or_forget_something_is_refused(field: str, value: object) -> None:
    """No retention at all empties the table; a checkpoint over all runs passes for ever by what failed once."""
    given = NEEDED | {"retention": timedelta(days=30), "is_sensitive": True}

    with pytest.raises(Misconfigured, match=f"job 'reconcile': {field} must be"):
        MaintenanceJob(**given | {field: value})
    with pytest.raises(Misconfigured, match="ByRule needs words"):
        ByRule(" ")


def test_retention_is_reckoned_from_a_moment_or_left_to_the_data() -> None:
    """Two retries of one night must agree on what is old."""
    given = NEEDED | {"is_sensitive": True}

    assert MaintenanceJob(**given, retention=timedelta(days=1)).expired_before(NIGHT) == NIGHT - timedelta(days=1)
    assert MaintenanceJob(**given, retention=ByRule("its own end")).expired_before(NIGHT) is None


def test_catching_up_on_each_needs_runs_that_wait() -> None:
    """All but the first of the runs made at once would be skipped for overlapping."""
    with pytest.raises(Misconfigured, match="job 'reconcile': overlap must be 'wait'"):
        ScheduledJob(**NEEDED, catch_up="each")

    assert ScheduledJob(**NEEDED, catch_up="each", overlap="wait").catch_up_limit == 24


def test_defaults_follow_from_the_kind() -> None:
    """Cleaning goes on past what it cannot remove; a provider's cursor must not pass what it has not got."""
    given = {name: value for name, value in NEEDED.items() if name != "partial_failure"}
    cleaning = MaintenanceJob(**given, retention=timedelta(days=30), is_sensitive=False)
    sync = ProviderSyncJob(**given, **PROVIDER)

    assert (cleaning.partial_failure, cleaning.checkpoint) == ("continue", "run")
    assert (sync.partial_failure, sync.checkpoint) == ("stop", "job")


def test_item_is_done_once_for_each_occasion_unless_the_job_says_otherwise() -> None:
    """Tonight's reconciliation of an order is no repeat of last night's; a retry of tonight's is."""
    job = ScheduledJob(**NEEDED)
    tonight, tomorrow = (Occasion(JobCode("reconcile"), ACME, NIGHT + timedelta(days=n)) for n in (0, 1))
    ever = replace(job, idempotency_key=lambda item, _: f"invoice {item}")

    assert job.item_identity("o1", tonight) == job.item_identity("o1", tonight)
    assert job.item_identity("o1", tonight) != job.item_identity("o1", tomorrow)
    assert ever.item_identity("o1", tonight) == ever.item_identity("o1", tomorrow) == "invoice o1"


async def test_scopes_are_asked_for_and_each_comes_once() -> None:
    """G12: a source that repeats a tenant must not make two runs, one that forgets its name none over all of them."""

    async def tenants(deps: list[Scope]) -> list[Scope]:
        return deps

    assert await scopes_of("j", tenants, [ZEBRA, ACME, ZEBRA]) == [ACME, ZEBRA]
    assert await scopes_of("j", [ZEBRA, ACME], None) == [ACME, ZEBRA]
    assert await scopes_of("j", AcrossScopes("the ledger is one"), None) == [NO_SCOPE]
    with pytest.raises(Misconfigured, match="job 'j': scopes hold one without tenant"):
        await scopes_of("j", tenants, [ACME, NO_SCOPE])


def test_all_scopes_at_once_need_a_reason() -> None:
    """G12: whoever reads the registry finds why one run may see every tenant's data."""
    with pytest.raises(Misconfigured, match="needs a reason"):
        AcrossScopes(" ")
    with pytest.raises(Misconfigured, match="scopes must name tenants"):
        ProviderSyncJob(**NEEDED | PROVIDER | {"scopes": AcrossScopes("all")})


def test_lock_holds_the_scope_and_no_name_makes_two_locks_one() -> None:
    """A tenant that is called `a/b` must not wait for tenant `a` with brand `b`."""
    names = {
        lock_name("shop", "reconcile", scope)
        for scope in (ACME, ZEBRA, NO_SCOPE, Scope("a/b"), Scope("a", "b"), Scope("a%2Fb"))
    }

    assert len(names) == 6
    assert lock_name("shop", "reconcile", ACME) == "job:shop/reconcile/acme/"
