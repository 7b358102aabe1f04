"""Proves that the tests can fail: each patch in tests/sabotage breaks one rule, and the test it names must turn red.

A patch begins with the lines `Rule: …` (what it breaks) and `Test: …` (pytest's node id, several allowed), then a diff.
It is applied to a temporary copy of what git tracks. Red means: failed by an assertion; an error of another kind, a
pass, a skip or a patch that no longer applies is a failure of this script.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# One test, on a loaded machine, with its imports.
_DEADLINE_SECONDS = 300
_ASSERTION = re.compile(
    r"\A(AssertionError|assert |Failed: (DID NOT RAISE|DID NOT WARN|Expected|.*not match))", re.MULTILINE
)


@dataclass(frozen=True)
class Sabotage:
    patch: Path
    rule: str
    tests: list[str]

    @classmethod
    def read(cls, patch: Path) -> "Sabotage":
        text = patch.read_text()
        rules, tests = (re.findall(rf"^{word}: (.+)$", text, re.MULTILINE) for word in ("Rule", "Test"))
        if len(rules) != 1 or not tests:
            raise SystemExit(f"{patch.name}: needs one line 'Rule: …' and at least one 'Test: …' above its diff")
        return cls(patch, rules[0], tests)


def main(names: list[str]) -> int:
    """0 if every patch (or each of the named ones) turns the tests it names red."""
    patches = sorted((ROOT / "tests" / "sabotage").glob("*.patch"))
    chosen = [Sabotage.read(patch) for patch in patches if not names or patch.stem in names]
    with ThreadPoolExecutor(os.cpu_count()) as tries:
        findings = zip(chosen, tries.map(_try, chosen), strict=True)
        wrong = [f"{each.patch.stem}: {finding}" for each, finding in findings if finding]
    print("\n".join(wrong) or f"all {len(chosen)} patches were noticed")
    return 1 if wrong or not chosen else 0


def _try(sabotage: Sabotage) -> str:
    """Empty if the named tests noticed the patch, else what happened instead."""
    print(f"{sabotage.patch.stem}: {sabotage.rule}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-sabotage-") as folder:
        copy = Path(folder)
        _copy_tracked_files(copy)
        applied = subprocess.run(
            ["git", "apply", str(sabotage.patch)], cwd=copy, capture_output=True, text=True, check=False
        )
        if applied.returncode != 0:
            return f"the patch no longer applies: {applied.stderr.strip()}"
        return next((finding for test in sabotage.tests if (finding := _run(test, copy))), "")


def _copy_tracked_files(copy: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    if (programs := ROOT / ".state" / "chart").exists():  # Helm and what else scripts/chart-tools has fetched
        (copy / ".state").mkdir()
        (copy / ".state" / "chart").symlink_to(programs.resolve())


def _run(test: str, copy: Path) -> str:
    report = copy / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--junit-xml={report}", test]
    environment = {**os.environ, "PYTHONPATH": str(copy), "CI": "true"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=_DEADLINE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{test} did not end within {_DEADLINE_SECONDS} s"
    if not report.exists():
        return f"{test} could not run: {done.stdout[-300:]}"
    cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314  # our own pytest's report
    failures = [failure.get("message", "") for case in cases for failure in case.iter("failure")]
    if any(_ASSERTION.search(message) for message in failures):
        return ""
    return f"{test} did not fail by an assertion: {failures[0] if failures else done.stdout.strip()[-300:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
