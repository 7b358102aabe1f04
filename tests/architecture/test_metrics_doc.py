"""docs/metrics.md is what dashboards and alerts are built by: it must name what a worker really answers."""

from __future__ import annotations

import re

import pytest
from prometheus_client import Gauge, generate_latest

from scripts import metrics_doc
from tidegate_kernel.metrics import Metrics


def test_metrics_document_is_current() -> None:
    """A metric that was renamed in the code and not in the document is an alert that never fires."""
    assert metrics_doc.FILE.read_text(encoding="utf-8") == metrics_doc.metrics_document(), (
        "run python -m scripts.metrics_doc"
    )


def test_every_metric_of_a_scrape_stands_in_the_document() -> None:
    """Compared with the text that Prometheus reads, not with the code that the document is made of."""
    scraped = re.findall(
        r"^# TYPE (\S+) (counter|gauge|histogram)$", generate_latest(Metrics().registry).decode(), re.MULTILINE
    )

    documented = re.findall(r"^\| `(\S+)` \| (\w+) \|", metrics_doc.FILE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(documented) == sorted(scraped)
    assert len(scraped) > 10


def test_metric_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a new metric would stand in the table with nothing said about it."""

    class Grown(Metrics):
        def __init__(self) -> None:
            super().__init__()
            Gauge("tidegate_mystery", "", registry=self.registry)

    monkeypatch.setattr(metrics_doc, "Metrics", Grown)
    with pytest.raises(ValueError, match="tidegate_mystery"):
        metrics_doc.metrics_document()


def test_names_and_labels_follow_the_rules() -> None:
    """Case 110, its static half: units in names, and no label that could grow with errors, ids or keys."""
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (.+?) \|", metrics_doc.metrics_document(), re.MULTILINE)

    labels = {label.strip(" `") for _, _, listed in rows for label in listed.split(",")} - {"none"}

    assert [name for name, _, _ in rows if not re.fullmatch(r"tidegate_[a-z_]+", name)] == []
    assert [name for name, kind, _ in rows if kind == "counter" and not name.endswith("_total")] == []
    assert [name for name, kind, _ in rows if kind == "histogram" and not name.endswith("_seconds")] == []
    assert labels <= {
        "job",
        "topic",
        "partition",
        "reason",
        "outcome",
        "type",
        "sink",
        "dependency",
        "part",
        "done",
    } | {"window"}
