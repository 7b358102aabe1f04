"""Which tests say that they cover a job: read from their source, so that nothing of them is imported or run.

A test says it with a mark, `@pytest.mark.covers("empty_batch", jobs=["ledger"])`, on the function, its class or, as
`pytestmark`, on its module. What the three say is added up, so that a suite names its jobs once. Rules and jobs are
literals. A test covers each of its rules for each of its jobs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_kernel.errors import Misconfigured


class Rule(StrEnum):
    """What tests of every job have to show."""

    EMPTY_BATCH = "empty_batch"
    PARTIAL_FAILURE = "partial_failure"
    SINGLE_RUNNER = "single_runner"
    REPEAT_IS_IDEMPOTENT = "repeat_is_idempotent"
    CANCELLATION = "cancellation"
    RETRY_DUPLICATES_NOTHING = "retry_duplicates_nothing"
    REPLAY_NEEDS_PERMISSION = "replay_needs_permission"


@dataclass(frozen=True, slots=True, order=True)
class Covering:
    """A test, and where it stands."""

    file: str
    test: str


Coverage = Mapping[tuple[str, Rule], Sequence[Covering]]
"""Tests by job and rule, in the order of their files."""


@dataclass(frozen=True, slots=True)
class _Said:
    rules: frozenset[Rule] = frozenset()
    jobs: frozenset[str] = frozenset()

    def plus(self, other: _Said) -> _Said:
        return _Said(self.rules | other.rules, self.jobs | other.jobs)


def covering_tests(root: Path, files: Iterable[Path]) -> Coverage:
    """Returns what the tests in `files` say that they cover. Raises Misconfigured, naming the place of a bad mark."""
    found: dict[tuple[str, Rule], list[Covering]] = {}
    for file in sorted(files):
        text = file.read_text(encoding="utf-8")
        if ".covers(" not in text:
            continue
        place = file.relative_to(root).as_posix()
        for test, said in _tests(ast.parse(text), place, _Said()):
            for job in said.jobs:
                for rule in said.rules:
                    found.setdefault((job, rule), []).append(Covering(place, test))
    return found


def _tests(tree: ast.Module | ast.ClassDef, place: str, outside: _Said) -> Iterator[tuple[str, _Said]]:
    said = outside.plus(_of_pytestmark(tree, place))
    for node in tree.body:
        match node:
            case ast.ClassDef():
                yield from _tests(node, place, said.plus(_of_marks(node.decorator_list, place)))
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield node.name, said.plus(_of_marks(node.decorator_list, place))


def _of_pytestmark(tree: ast.Module | ast.ClassDef, place: str) -> _Said:
    said = _Said()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets):
            values = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            said = said.plus(_of_marks(values, place))
    return said


def _of_marks(nodes: Iterable[ast.expr], place: str) -> _Said:
    said = _Said()
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.covers"):
            said = said.plus(_read(node, place))
    return said


def _read(mark: ast.Call, place: str) -> _Said:
    try:
        rules = [Rule(ast.literal_eval(each)) for each in mark.args]
        keywords = {each.arg: ast.literal_eval(each.value) for each in mark.keywords}
        jobs = [str(each) for each in keywords.pop("jobs", ())]
    except ValueError as error:
        known = ", ".join(Rule)
        raise Misconfigured(
            f"{place}:{mark.lineno}: covers takes literal rules of {known}, and jobs=[…] of literal codes"
        ) from error
    if keywords:
        raise Misconfigured(f"{place}:{mark.lineno}: covers knows no {', '.join(map(str, keywords))}")
    return _Said(frozenset(rules), frozenset(jobs))
