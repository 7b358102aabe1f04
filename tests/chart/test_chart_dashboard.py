"""The dashboard: panels that ask for what workers tell, in words that Prometheus takes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scripts.metrics_doc import metrics_document
from tests.chart.rendering import example, objects, only, program

_WHO = 'namespace="shop",service="shop-tidegate"'


@cache
def _dashboard() -> Any:
    (text,) = only(example("shop"), "ConfigMap", "dashboard")["data"].values()
    return json.loads(text)


def _queries() -> Iterator[tuple[str, str]]:
    """Every query, with the panel it is in, as Grafana sends it."""
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*")


def _metrics() -> dict[str, set[str]]:
    """The labels of each series that a worker tells, by its name: what docs/metrics.md is made of."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", metrics_document(), re.MULTILINE):
        found[f"{name}_bucket" if kind == "histogram" else name] = set(re.findall(r"`(\w+)`", labels))
    return found


def test_every_panel_asks_for_what_workers_tell() -> None:
    """A renamed metric leaves an empty panel, which looks like peace."""
    known = _metrics()
    queries = list(_queries())
    for title, query in queries:
        asked = re.findall(r"\btidegate_\w+", query)
        assert asked, title
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        for name in asked:
            assert name in known, f"{title}: {name}"
            assert labels - {"le"} <= known[name], f"{title}: {name} has no {labels - known[name]}"
            assert ("job=~" in query) == ("job" in known[name]), f"{title}: {query}"
    assert len(queries) > 20


def test_legends_name_labels_that_the_query_leaves() -> None:
    """Else all lines of a panel have one name."""
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            left = {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, panel["title"]


def test_every_query_answers(tmp_path: Path) -> None:
    """By Prometheus itself: one that it refuses, or that finds nothing where there is something, shows nothing."""
    series = [{"series": each, "values": "1+1x90"} for each in _series()]
    tested = [
        {
            "expr": f"count({query}) > bool 0",
            "eval_time": "80m",
            "exp_samples": [{"value": 1, "labels": "{}"}],
        }
        for _, query in _queries()
    ]
    cases = {"evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": series, "promql_expr_test": tested},
    ]}  # fmt: skip
    (tmp_path / "cases.yaml").write_text(json.dumps(cases))
    command = [program("promtool"), "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _series() -> Sequence[str]:
    """One of each metric, as a scraped worker tells it."""
    made = []
    for name, labels in _metrics().items():
        own = ",".join(f'{label}="x"' for label in sorted(labels | ({"le"} if name.endswith("_bucket") else set())))
        own = own.replace('le="x"', 'le="+Inf"')
        made.append(f"{name}{{{','.join(filter(None, (_WHO, own)))}}}")
        if name.endswith("_bucket"):
            made.append(made[-1].replace("+Inf", "1"))
    return made


def test_panels_have_a_place_of_their_own_and_say_what_they_show() -> None:
    """Two in one place hide each other."""
    panels = _dashboard()["panels"]
    places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}
    assert len(places) == len({each["id"] for each in panels}) == len(panels) == 12
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
    assert all(each["title"] and each["description"] for each in panels)
    assert {target["datasource"]["uid"] for each in panels for target in each["targets"]} == {"${datasource}"}
    assert {each["name"] for each in _dashboard()["templating"]["list"]} == {"datasource", "job"}


def test_dashboards_of_two_releases_are_two() -> None:
    """Grafana knows them by `uid`: of one uid the last to come would be the only one."""

    def uid(**values: object) -> str:
        found = only(objects(metrics={"dashboard": {"enabled": True}}, **values), "ConfigMap", "dashboard")
        (text,) = found["data"].values()
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        return str(json.loads(text)["uid"])

    assert uid() == _dashboard()["uid"]
    assert len({uid(), uid(fullnameOverride="other")}) == 2
    assert len(uid()) <= 40


def test_no_dashboard_unless_it_is_asked_for() -> None:
    """Where nothing takes it in, it is 20 kB that nobody reads."""
    assert [each["metadata"]["name"] for each in objects() if "dashboard" in each["metadata"]["name"]] == []
