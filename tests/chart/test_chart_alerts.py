"""Alerts fire when they should, by Prometheus' own tester; each leads to a section that says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import ROOT, example, library, objects, only, program
from tidegate_kernel.metrics import Metrics

_TESTS = Path(__file__).with_name("alerts.test.yaml")
_RUNBOOKS = ROOT / "docs" / "runbooks" / "alerts.md"
_WHO = 'namespace="shop",service="shop-tidegate"'


def _rules() -> list[Any]:
    groups = only(example("shop"), "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _cases() -> dict[str, Any]:
    yaml = library("yaml")
    text = _TESTS.read_text(encoding="utf-8").replace("{WHO", "{" + _WHO)
    return dict(yaml.load(text, yaml.CSafeLoader))


def _promtool(folder: Path, rules: list[Any], cases: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """JSON is YAML, too. Annotations are rendered by the rule itself, so `ALL` stands for what it then says."""
    groups = [{"name": "tidegate", "rules": [{**rule, "annotations": {}} for rule in rules]}]
    (folder / "rules.yaml").write_text(json.dumps({"groups": groups}))
    cases = deepcopy(cases)
    for each in cases["tests"]:
        for expected in (alert for tested in each["alert_rule_test"] for alert in tested["exp_alerts"]):
            assert expected.pop("exp_annotations") == "ALL"
    (folder / "cases.yaml").write_text(json.dumps(cases))
    command = [program("promtool"), "test", "rules", "cases.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """An alert that was never seen to fire is a hope."""
    done = _promtool(tmp_path, _rules(), _cases())
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire() -> None:
    """A new alert comes with its test."""
    fired = {
        tested["alertname"] for each in _cases()["tests"] for tested in each["alert_rule_test"] if tested["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in _rules()}


def test_silenced_alert_is_noticed(tmp_path: Path) -> None:
    """The tester itself: with every threshold out of reach nothing fires, and the tests say so."""
    silent = [{**rule, "expr": f"({rule['expr']}) and vector(1) == 2"} for rule in _rules()]
    done = _promtool(tmp_path, silent, _cases())
    assert done.returncode != 0
    assert "TidegatePartitionBlocked" in done.stdout + done.stderr


def test_alerts_and_scaling_ask_for_metrics_and_labels_that_exist() -> None:
    """A renamed metric silences its alert, and nobody hears that."""
    known = {
        name
        for family in Metrics().registry.collect()
        for name in (family.name, f"{family.name}_total", f"{family.name}_bucket")
    }
    queries = [rule["expr"] for rule in _rules()]
    queries.append(only(example("shop"), "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"])

    asked = {name for query in queries for name in re.findall(r"\btidegate_\w+", query)}

    assert len(asked) > 12
    assert asked - known == set()


def test_rules_are_ones_that_prometheus_takes(tmp_path: Path) -> None:
    """With their annotations, which are templates of Prometheus inside templates of Helm."""
    spec = only(example("shop"), "PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": spec["groups"]}))
    command = [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("query", ["job", "all"])
def test_scaling_counts_the_furthest_partition_that_pods_can_help(query: str, tmp_path: Path) -> None:
    """A blocked partition grows for ever: counted, it would hold the most pods that are allowed, for nothing."""
    jobs: dict[str, Any] = {"jobs": ["a.b"]} if query == "job" else {"allJobs": True}
    found = objects(
        workloads={"one": {**jobs, "partitions": 8, "autoscaling": {"kind": "keda"}}},
        metrics={"prometheusUrl": "http://prometheus:9090"},
    )
    asked = only(found, "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    behind, blocked = "tidegate_seconds_behind", "tidegate_partition_blocked"

    def series(name: str, partition: int, values: str, job: str = "a.b") -> dict[str, str]:
        labels = f'{_WHO},job="{job}",topic="t",partition="{partition}",pod="p{partition}"'
        return {"series": f"{name}{{{labels}}}", "values": values}

    given = [series(behind, 0, "7x20"), series(behind, 1, "900x10 20x10"), series(behind, 2, "5000x20")]
    given += [series(blocked, 1, "0x20"), series("tidegate_partition_paused", 2, "1x20")]
    # Jobs of another workload: `a-b` would match a dot that is not escaped.
    given += [series(behind, 3, "0x20" if query == "all" else "8000x20", job="a-b")]
    all_blocked = [series(behind, 0, "900x10 _x10"), series(blocked, 0, "1x20")]

    def asks(minute: int, *expected: float) -> dict[str, Any]:
        samples = [{"value": each} for each in expected]
        return {"expr": asked, "eval_time": f"{minute}m", "exp_samples": samples}

    tests = [
        {"interval": "1m", "input_series": given, "promql_expr_test": [asks(5, 900), asks(15, 20)]},
        # No measures at all are no answer: the number of pods stays. Only blocked ones are "nothing to do".
        {"interval": "1m", "input_series": all_blocked, "promql_expr_test": [asks(5, 0), asks(19)]},
    ]
    (tmp_path / "cases.yaml").write_text(json.dumps({"evaluation_interval": "1m", "tests": tests}))
    command = [program("promtool"), "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_section_in_the_runbook() -> None:
    """Whoever is woken up reads one page."""
    sections = re.findall(r"^## (\w+)$", _RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == [rule["alert"] for rule in _rules()]
    default = only(objects(metrics={"rules": {"enabled": True}}), "PrometheusRule")["spec"]["groups"][0]["rules"]
    for rule in default:
        file, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / file == _RUNBOOKS
        assert section == rule["alert"].lower()
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_thresholds_are_values() -> None:
    """What is far behind for one service is nothing for another."""
    said = {"enabled": True, "secondsBehind": 7, "deadLetterRatio": 0.5, "deadLettersAnHour": 3, "deadLetterDays": 0.5}
    rules = only(objects(metrics={"rules": said}), "PrometheusRule")["spec"]["groups"][0]["rules"]
    asked = {rule["alert"]: rule["expr"] for rule in rules}
    assert asked["TidegateBacklog"].endswith("> 7")
    assert asked["TidegateErrorRate"].endswith("> 0.5")
    assert asked["TidegateDeadLettersGrow"].endswith("> 3")
    assert asked["TidegateDeadLetterForgotten"].endswith("> 43200")
