"""The document of a job: eleven sections in two languages, from the declaration alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from string import Formatter
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from examples.shop.app import app as shop
from scripts.metrics_doc import families
from tidegate import AcrossScopes, App, Context, Cron, Every, Page, Scope, Text, answer, handle
from tidegate.jobs.clockwork.declaration import ClockJob, ScheduledJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob, RateLimit
from tidegate.jobs.declaration import Job
from tidegate.jobs.docs.coverage import Rule, covering_tests
from tidegate.jobs.docs.documents import Repository, differing, document, documents_of, write
from tidegate.jobs.docs.english import ENGLISH
from tidegate.jobs.docs.models import fields_of
from tidegate.jobs.docs.references import naming
from tidegate.jobs.docs.russian import RUSSIAN
from tidegate.jobs.docs.sheet import WORDS, Sheet
from tidegate.jobs.registry import RegistryEntry, registry, upkeep_registry
from tidegate.jobs.text import Language
from tidegate.upkeeping import UPKEEP_PACE
from tidegate_kernel import logs
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.metrics import Metrics

HEADINGS = {
    Language.EN: [
        "Purpose",
        "Classification",
        "Schedule and locking",
        "Input model",
        "Algorithm",
        "Transaction boundary",
        "Idempotency and retry",
        "Observability",
        "Runbooks",
        "Tests",
        "Back references",
    ],
    Language.RU: [
        "Назначение",
        "Классификация",
        "Расписание и locking",
        "Входная модель",
        "Алгоритм",
        "Граница транзакции",
        "Идемпотентность и retry",
        "Наблюдаемость",
        "Связанный runbook",
        "Тесты",
        "Обратные ссылки",
    ],
}
EVENTS = {value for value in vars(logs).values() if isinstance(value, str)}


class Limits(pydantic.BaseModel):
    """What a run can be told."""

    most: Annotated[int, Text(en="how many orders at most", ru="сколько заказов самое большее")] = 100
    since: str = pydantic.Field(default="", description="a day")


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


def version(_: Any) -> str:
    return "1"


GIVEN: dict[str, Any] = {
    "query": Orders,
    "command": Check,
    "key": str,
    "scopes": [Scope("acme", "kids")],
    "runbook": "docs/runbooks/customer-ledger.md",
}
NIGHTLY = ScheduledJob(
    code="nightly",
    trigger=Cron("0 2 * * *", "Europe/Berlin"),
    partial_failure="quarantine",
    input=Limits,
    jitter=timedelta(minutes=5),
    purpose=Text(en="Orders against payments.", ru="Заказы против платежей."),
    **GIVEN,
)
ALL_AT_ONCE = replace(NIGHTLY, code="all", scopes=AcrossScopes("the ledger is one"), trigger=None, unit="batch")
CLEANING = MaintenanceJob(
    code="clean", trigger=Every(timedelta(hours=1)), retention=timedelta(days=30), is_sensitive=True, **GIVEN
)
SYNC = ProviderSyncJob(
    code="sync",
    trigger=Every(timedelta(minutes=90)),
    provider="catalogue",
    access=[Scope("acme", "kids")],
    rate_limit=RateLimit(5),
    reach_back=timedelta(minutes=5),
    version=version,
    **GIVEN,
)
CLOCKED: list[Any] = [NIGHTLY, ALL_AT_ONCE, CLEANING, SYNC]
HANDLERS = [answer(Orders, orders), handle(Check, check)]


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> App:
    """An app with every kind of job by the clock, whether or not something runs it yet."""
    monkeypatch.setattr("tidegate.app.check_clock_job", lambda *_: None)
    return App(service="shop", owner="orders-team", jobs=[], clock_jobs=CLOCKED, handlers=HANDLERS)


def every_job(clocked: App) -> list[tuple[App, Job | ClockJob]]:
    return [(app, job) for app in (shop, clocked) for job in (*app.jobs, *app.clock_jobs)]


@pytest.mark.parametrize("language", Language)
def test_document_has_the_sections_of_the_standard_in_their_order(clocked: App, language: Language) -> None:
    """A reader finds the same thing at the same place in every document, whichever kind of job it is."""
    for app, job in every_job(clocked):
        text = document(Sheet(app, job, language))

        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS[language], job.code
        bodies = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
        assert all(body.strip() for body in bodies), job.code


def test_russian_says_what_english_says() -> None:
    """A sentence that one language lacks, or a fact that one forgets, is found here and not by a reader."""
    assert list(ENGLISH) == list(RUSSIAN)
    assert {key: _facts(ENGLISH)[key] for key in ENGLISH} == _facts(RUSSIAN)


def _facts(words: Mapping[str, str]) -> dict[str, set[str]]:
    return {key: {name for _, name, _, _ in Formatter().parse(text) if name} for key, text in words.items()}


def test_russian_document_has_no_english_sentence(clocked: App) -> None:
    """Names, and the words that the standard itself leaves in English, are all that a reader of Russian has to know."""
    for app, job in every_job(clocked):
        text = document(Sheet(app, job, Language.RU))
        without_names = re.sub(r"`[^`]*`|<!--.*-->|the ledger is one", "", text)
        assert not re.search(r"\b(the|is|are|of|and)\b", without_names), job.code


def test_tenant_is_the_first_field_of_every_input(clocked: App) -> None:
    """The boundary that no job may cross by mistake stands where everybody looks first."""
    for app, job in every_job(clocked):
        text = document(Sheet(app, job, Language.EN))
        rows = text.split("## Input model")[1].split("## Algorithm")[0].split("| --- |")[-1].splitlines()

        assert rows[1].startswith("| TenantId | `str` |"), job.code
        assert rows[1].endswith("| tenant boundary |"), job.code


def test_input_model_is_told_from_its_class(clocked: App) -> None:
    """Field, type, whether it has to be given, where it comes from, what it means: nothing typed twice."""
    en, ru = (document(Sheet(clocked, NIGHTLY, language)) for language in Language)

    assert "| most | `int` | no | `--param most=…` of the manual input" in en
    assert "how many orders at most |" in en
    assert "сколько заказов самое большее |" in ru
    assert "| since | `str` | no |" in en


def test_declared_policies_stand_in_the_document(clocked: App) -> None:
    """What was declared is what is told: time zone, lock, retention, access, reasons."""
    told = {job.code: document(Sheet(clocked, job, Language.EN)) for job in clocked.clock_jobs}

    for words in (
        "`0 2 * * *`, time zone `Europe/Berlin`",
        "up to 5 min later",
        "`job:shop/nightly/{tenant}/{brand}`",
        "time to live 15 s, renewed every 5 s",
        "Orders against payments.",
        "quarantine",
    ):
        assert words in told["nightly"]
    assert "One run scans across all tenants, because: the ledger is one" in told["all"]
    assert "per batch of up to 100 items" in told["all"]
    assert "older than 30 d. Each chunk that removes something is audited." in told["clean"]
    assert "at most 5 calls in 1 s over all processes" in told["sync"]
    assert "every 1 h 30 min" in told["sync"]
    assert "for `acme/kids`" in told["sync"]


def test_every_metric_and_log_event_that_is_named_exists(clocked: App) -> None:
    """An alert on a metric that nobody writes would never go off."""
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families(Metrics())}

    for app, job in every_job(clocked):
        text = document(Sheet(app, job, Language.EN)).split("## Observability")[1].split("## Runbooks")[0]
        assert set(re.findall(r"\btidegate_\w+", text)) <= known, job.code
        events = next(line for line in text.splitlines() if line.startswith("- **Logs**"))
        assert set(re.findall(r"`([\w.]+)`", events)) <= EVENTS, job.code


def test_observability_is_complete_for_every_kind(clocked: App) -> None:
    """Duration, items, errors, backlog, lock contention; traces by tenant, correlation id and run; where the checkpoint
    is read; and of a provider its breaker and what it throttles."""
    for app, job in every_job(clocked):
        text = document(Sheet(app, job, Language.EN)).split("## Observability")[1].split("## Runbooks")[0]
        for measure in ("duration", "processed", "errors", "backlog", "lock contention", "circuit breakers"):
            assert measure in text, (job.code, measure)
        for attribute in ("tidegate.correlation_id", "tidegate.tenant", "tidegate.run"):
            assert f"`{attribute}`" in text, (job.code, attribute)
        assert f"`tidegate jobs show {job.code} --json`" in text, job.code
        is_late_told = "the SLA" in text
        assert is_late_told == (getattr(job, "freshness_sla", None) is not None), job.code
        if isinstance(job, ProviderSyncJob):
            for words in ("tidegate_provider_calls_total", "tidegate_breaker_open", "provider.throttled", "cursor"):
                assert words in text, (job.code, words)


def test_covering_tests_are_found_in_their_source(tmp_path: Path) -> None:
    """Nothing is imported: a module that would fail at its import is read all the same."""
    file = tmp_path / "test_suite.py"
    file.write_text(
        "import nothing_of_that_name\n"
        "pytestmark = [pytest.mark.servers, pytest.mark.covers(jobs=['ledger', 'search'])]\n"
        "@pytest.mark.covers('empty_batch')\n"
        "async def test_nothing(): ...\n"
        "class TestMore:\n"
        "    @pytest.mark.covers('cancellation', jobs=['sync'])\n"
        "    def test_stop(self): ...\n"
        "def test_other(): ...\n"
    )

    found = covering_tests(tmp_path, [file])

    assert {key: [each.test for each in tests] for key, tests in found.items()} == {
        ("ledger", Rule.EMPTY_BATCH): ["test_nothing"],
        ("search", Rule.EMPTY_BATCH): ["test_nothing"],
        ("ledger", Rule.CANCELLATION): ["test_stop"],
        ("search", Rule.CANCELLATION): ["test_stop"],
        ("sync", Rule.CANCELLATION): ["test_stop"],
    }


@pytest.mark.parametrize("mark", ["covers('emtpy_batch')", "covers(RULE)", "covers('empty_batch', job=['a'])"])
def test_mark_that_says_nothing_is_an_error(tmp_path: Path, mark: str) -> None:
    """A misspelt rule would leave a gap in the document, and a test that nobody finds."""
    file = tmp_path / "test_suite.py"
    file.write_text(f"@pytest.mark.{mark}\ndef test_nothing(): ...\n")

    with pytest.raises(Misconfigured, match=r"test_suite.py:1: covers"):
        covering_tests(tmp_path, [file])


def test_documents_that_name_a_job_are_told(tmp_path: Path) -> None:
    """A code that is a word of the language counts only as a name."""
    texts = [
        (tmp_path / name, text)
        for name, text in {
            "a.md": "as `notes` does",
            "b.md": "she notes it",
            "c.md": "customer-ledger-2",
            "d.md": "see customer-ledger.",
        }.items()
    ]

    assert [file.name for file in naming("notes", texts)] == ["a.md"]
    assert [file.name for file in naming("customer-ledger", texts)] == ["d.md"]


def test_folder_of_documents_is_written_and_compared(tmp_path: Path) -> None:
    """A changed document and one of a job that is gone are both told; what somebody else wrote stays."""
    texts = documents_of(shop, Language.EN, Repository(tmp_path, [], {}), tmp_path)
    (tmp_path / "README.md").write_text("ours\n")
    written = write(texts, tmp_path)
    (tmp_path / "order-search.md").write_text("drifted\n")
    (tmp_path / "gone.md").write_text(texts["order-search.md"])

    assert set(written) == set(texts)
    assert differing(texts, tmp_path) == ["order-search.md", "gone.md"]
    assert write(texts, tmp_path) == ["order-search.md", "gone.md"]
    assert (differing(texts, tmp_path), (tmp_path / "README.md").exists()) == ([], True)


def test_fields_of_every_kind_of_model() -> None:
    """Whatever library a service uses for its models."""

    class Struct(msgspec.Struct):
        name: Annotated[str, msgspec.Meta(description="who")]
        tags: list[str] | None = None

    assert [(each.name, each.type, each.is_required, each.description) for each in fields_of(Struct)] == [
        ("name", "str", True, "who"),
        ("tags", "list[str] | None", False, None),
    ]
    assert [(each.name, each.is_required) for each in fields_of(Limits)] == [("most", False), ("since", False)]
    assert [(each.name, each.type) for each in fields_of(Check)] == [("order", "str")]
    assert fields_of(int) == []


def test_registry_has_all_fields_of_the_standard_for_every_kind(clocked: App) -> None:
    """What is asked of a job by whoever keeps the registry, and beside it what its kind alone has to say."""
    needs = {
        "ConsumerJob": {"idempotency", "retry policy", "dead-letter policy"},
        "ProjectionJob": {"freshness objective", "replay", "backfill"},
        "FoldJob": {"freshness objective", "replay", "backfill"},
        "ScheduledJob": {"distributed lock", "checkpoint of", "metrics"},
        "MaintenanceJob": {"retention policy", "audit"},
        "ProviderSyncJob": {"access control", "rate limit", "circuit breaker"},
    }
    entries = [*registry(shop), *registry(clocked)]

    assert {entry.kind for entry in entries} == set(needs)
    for entry in entries:
        assert set(entry.kind_needs) == needs[entry.kind]
        told = (entry.code, entry.service, entry.owner, entry.trigger, entry.command, entry.purpose, entry.type)
        assert all((*told, entry.idempotency_key, entry.lock_key, entry.checkpoint, entry.runbook)), entry.code
        assert entry.freshness_sla_seconds is not None or entry.kind not in ("ProjectionJob", "FoldJob"), entry.code
    promised = {entry.code: entry.freshness_sla_seconds for entry in entries}
    assert (promised["nightly-reconciliation"], promised["disc-catalogue"]) == (26 * 3600, 3600), (
        "reports promise it too"
    )


def test_registry_tells_numbers_as_numbers(clocked: App) -> None:
    """A program that reads `--json` compares a batch size; a text that looks like one would compare as a text."""
    for entry in [*registry(shop), *registry(clocked)]:
        assert isinstance(entry.batch_size, int)
        assert isinstance(entry.max_duration_seconds, float | None)


@pytest.mark.parametrize("language", Language)
def test_document_of_upkeep_promises_only_what_a_round_does(language: Language) -> None:
    """Its declaration has the fields of every job, and a round heeds few of them: no items, no pages, another lease."""
    told = document(Sheet(shop, shop.clock_job("tidegate.inbox"), language))

    span = Sheet(shop, shop.clock_job("tidegate.inbox"), language).span
    assert span(UPKEEP_PACE.lease_ttl) in told
    assert span(UPKEEP_PACE.lease_ttl / 3) in told
    absent = (
        "100",
        "UpkeepRound",
        "`str`,",
        "tidegate.job_item",
        "jobs items",
        "policy `default`",
        logs.RUN_ITEM_FAILED,
    )
    assert [each for each in absent if each in told] == []


def test_registry_of_upkeep_has_nothing_of_items() -> None:
    """What the document leaves out must not be read in `tidegate jobs show`."""
    for entry in upkeep_registry(shop):
        assert "item" not in f"{entry.retry} {entry.checkpoint} {entry.idempotency_key} {entry.unit}"
        assert (entry.query, entry.partial_failure) == (None, "stop")


def test_what_a_kind_needs_hides_no_field_of_the_registry(clocked: App) -> None:
    """`tidegate jobs show` has both in one table: of two lines with one name a reader would see the later alone."""
    for entry in [*registry(shop), *registry(clocked)]:
        fields = {name.replace("_", " ") for name in RegistryEntry.__dataclass_fields__}
        assert fields.isdisjoint(need.casefold() for need in entry.kind_needs), entry.code


def test_text_says_it_in_both_languages_or_not_at_all() -> None:
    """Half a translation would be found by its reader."""
    with pytest.raises(Misconfigured, match="ru is empty"):
        Text(en="orders", ru=" ")
    assert set(WORDS) == set(Language)
