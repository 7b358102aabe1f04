"""Writes docs/metrics.md from the catalogue; with --check, says whether the file is current.

Name, kind, labels and meaning are asked of the registry itself, so that what is scraped is what is described.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from tidegate_kernel.metrics import BATCH_BUCKETS, LAG_BUCKETS, Metrics

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "metrics.md"

_HEAD = """\
# Metrics

<!-- Written by scripts/metrics_doc.py from tidegate_kernel/metrics.py; do not edit by hand. -->

Every worker answers `GET /metrics` on `TIDEGATE_HTTP_PORT` with these, in the text format of Prometheus. No label grows
with the data: `topic` and `partition` are bounded by what is assigned, `job` and `reason` by what is declared. A
partition that another worker owns has no series here.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def metrics_document() -> str:
    """The whole text of docs/metrics.md. Raises ValueError for a metric without meaning."""
    return _HEAD + "\n".join(_rows(Metrics())) + "\n" + _buckets()


def _rows(metrics: Metrics) -> Iterator[str]:
    for family in sorted(families(metrics), key=lambda family: family.name):
        if not family.documentation.strip():
            raise ValueError(f"metric {family.name}: what does it mean?")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in _labels(metrics, family)) or "none"
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def families(metrics: Metrics) -> list[Metric]:
    """Every metric of a process, whether it has a value yet or not."""
    return list(metrics.registry.collect())


def _labels(metrics: Metrics, family: Metric) -> tuple[str, ...]:
    """The labels that a metric has, whether a series is there yet or not. The library keeps them to itself."""
    makers = (each for each in metrics.registry._collector_to_names if getattr(each, "_name", None) == family.name)
    # What our own collectors make when they are scraped carries its labels itself.
    return tuple(getattr(next(makers, family), "_labelnames", ()))


def _buckets() -> str:
    spelled = {
        "tidegate_batch_seconds": BATCH_BUCKETS,
        "tidegate_event_lag_seconds": LAG_BUCKETS,
    }
    lines = [f"- `{name}`: {', '.join(f'{bound:g}' for bound in bounds)}" for name, bounds in spelled.items()]
    return "\nUpper bounds of the histograms' buckets, in seconds:\n\n" + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """0 if the file is current, or was written."""
    text = metrics_document()
    if arguments == ["--check"]:
        is_current = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        print(
            f"docs/metrics.md is {'' if is_current else 'not '}current; it is written by python -m scripts.metrics_doc"
        )
        return 0 if is_current else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
