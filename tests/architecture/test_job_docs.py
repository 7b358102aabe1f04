"""docs/jobs holds the documents of the shop's jobs, in two languages: they must be what the declarations say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.shop.app import app as shop
from tests.architecture.source import ROOT
from tidegate.jobs.docs.documents import Repository, differing, documents_of
from tidegate.jobs.text import Language


@pytest.fixture(scope="module")
def repository() -> Repository:
    return Repository.at(ROOT)


@pytest.mark.parametrize("language", Language)
def test_documents_of_the_shops_jobs_are_current(repository: Repository, language: Language) -> None:
    """A lock, a retention or a retry that is another by now must not be read in a document that is older."""
    folder = ROOT / "docs" / "jobs" / language

    texts = documents_of(shop, language, repository, folder)

    assert differing(texts, folder) == [], "run scripts/job_docs"


def test_every_job_of_the_shop_has_a_runbook_that_is_there(repository: Repository) -> None:
    """A link to nothing is found at night."""
    missing = [
        job.code
        for job in (*shop.jobs, *shop.clock_jobs)
        if repository.evidence(job, ROOT / "docs" / "jobs" / "en").runbook is None
    ]

    assert missing == []


def test_document_goes_red_when_a_declaration_changes(repository: Repository, tmp_path: Path) -> None:
    """The comparison compares: a file with one word changed is named."""
    texts = documents_of(shop, Language.EN, repository, tmp_path)
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "customer-ledger.md").write_text(texts["customer-ledger.md"].replace("500", "501"), encoding="utf-8")

    assert differing(texts, tmp_path) == ["customer-ledger.md"]
