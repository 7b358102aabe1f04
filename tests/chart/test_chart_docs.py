"""What is written twice says the same: versions, the table of values, the schema, the runbook's place."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts import chart_doc
from tests.chart.rendering import CHART, ROOT, helm, library
from tidegate.version import __version__


def test_generated_parts_are_current() -> None:
    """A setting that the schema does not know could not be set; a default that the table does not know misleads."""
    for file, text in chart_doc.written().items():
        assert file.read_text(encoding="utf-8") == text, f"{file.name}: run python -m scripts.chart_doc"


def test_package_image_and_chart_have_one_version() -> None:
    """Three numbers would be three questions at night."""
    chart = library("yaml").safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
    (image,) = re.findall(r"^ARG VERSION=(.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert image == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "tidegate/version.py"


def test_next_version_is_written_everywhere_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever releases changes one line and runs one script; what it forgets would name an image that is not there."""
    monkeypatch.setattr(chart_doc, "__version__", "9.8.7")
    written = {file.name: text for file, text in chart_doc.written().items()}
    for name in ("Chart.yaml", "Dockerfile", "README.md"):
        former = [text for file, text in chart_doc.written().items() if file.name == name]
        assert not any(
            re.search(rf"(tidegate:|ersion: ?\"?|VERSION=){re.escape(__version__)}", text) for text in former
        )
    assert 'appVersion: "9.8.7"' in written["Chart.yaml"]
    assert written["Dockerfile"].count("9.8.7") == 2
    assert chart_doc.written()[chart_doc.INSTALLING].count("tidegate:9.8.7") == 2


def _paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.")


# Kubernetes' own shapes, whose parts it explains itself.
_WHOLE = ("resources", "rollingUpdate", "podSecurityContext", "securityContext", "labels")


def test_every_value_is_explained() -> None:
    """A value without a word gets copied from installation to installation, because nobody dares to touch it."""
    text = chart_doc.VALUES.read_text(encoding="utf-8")
    told = {each.path for each in chart_doc.values(text)}
    values = library("yaml").safe_load(text)

    sections = {path.rpartition(".")[0] for path in _paths(values)}
    untold = [
        path
        for path in _paths(values)
        if path not in told and path not in sections and not any(f"{whole}." in path for whole in _WHOLE)
    ]

    assert len(told) > 80
    assert untold == []


def test_schema_knows_every_value_and_no_other() -> None:
    """A value that the schema forgot could not be set at all; one that no template reads would be a lie."""
    schema = json.loads(chart_doc.SCHEMA.read_text(encoding="utf-8"))
    values = library("yaml").safe_load(chart_doc.VALUES.read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == values.keys()
    for section in ("image", "worker", "migrations", "tasks", "serviceAccount", "networkPolicy", "http", "probes"):
        assert schema["properties"][section]["properties"].keys() == values[section].keys(), section
    for section in ("serviceMonitor", "rules", "dashboard"):
        known = schema["properties"]["metrics"]["properties"][section]["properties"]
        assert known.keys() == values["metrics"][section].keys()
    workload = schema["definitions"]["workload"]["properties"].keys()
    assert workload == values["worker"].keys() | {"jobs", "allJobs"}


def test_every_value_is_read_by_a_template() -> None:
    """One that nothing reads looks as if it did something."""
    templates = "\n".join(path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").rglob("*.*")))
    values = library("yaml").safe_load(chart_doc.VALUES.read_text(encoding="utf-8"))
    names = {path.rpartition(".")[2] for path in _paths(values) if not any(f"{whole}." in path for whole in _WHOLE)}
    # Handed on as they are, by the section that holds them.
    whole = {"periodSeconds", "timeoutSeconds", "failureThreshold", "startup", "liveness", "readiness"}
    assert sorted(name for name in names - whole if not re.search(rf"[.\"]{name}\b", templates)) == []


@pytest.mark.parametrize("wrong", ["# -- told\nkey: 1\n", "key: 1\n"])
def test_table_holds_what_has_a_sentence(wrong: str) -> None:
    """The parser of the comments, on the two cases there are."""
    found = list(chart_doc.values(wrong))
    assert found == ([chart_doc.Value("key", "1", "told")] if "told" in wrong else [])


def test_links_of_the_charts_page_lead_somewhere() -> None:
    """It is what people read first, and often the only thing."""
    links = re.findall(r"\]\(([^)#\s]+)", chart_doc.README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (CHART / link).exists()] == []


def test_package_of_the_chart_has_its_schema_and_no_examples(tmp_path: Path) -> None:
    """Without its schema every typo would be taken."""
    done = helm("package", "helm", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / f"tidegate-{__version__}.tgz") as package:
        names = set(package.getnames())
    assert {"tidegate/values.schema.json", "tidegate/values.yaml", "tidegate/README.md"} <= names
    assert not [name for name in names if "examples" in name]
