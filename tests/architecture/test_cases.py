"""Every reported failure of cases.txt has a test that says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import python_files

_TABLE = Path(__file__).with_name("cases.txt")
_MENTION = re.compile(r"\bCases? ((?:\d+(?:[–-]\d+)?(?:, | and )?)+)")


def _expected() -> dict[int, str]:
    lines = [line for line in _TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {int(number): text.strip() for number, _, text in (line.partition("|") for line in lines)}


def _docstrings() -> Iterator[str]:
    for file in python_files("tests"):
        if file.parent.name == "architecture" or not file.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield ast.get_docstring(node) or ""


def numbers_in(docstring: str) -> set[int]:
    """The case numbers a sentence names: `Case 7`, `Cases 1, 2 and 4`, `Cases 28–32`."""
    found: set[int] = set()
    for listed in _MENTION.findall(docstring):
        for first, last in re.findall(r"(\d+)(?:[–-](\d+))?", listed):
            found.update(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    "docstring, numbers",
    [
        ("Case 7: one.", {7}),
        ("Cases 1, 2 and 4: three.", {1, 2, 4}),
        ("Cases 28–32, all of them, in 5 seconds.", {28, 29, 30, 31, 32}),
        ("Case 21's heart. Also Case 25, other end.", {21, 25}),
        ("In any case 3 of them.", set()),
    ],
)
def test_numbers_are_read_as_people_write_them(docstring: str, numbers: set[int]) -> None:
    """The next test is only as good as this."""
    assert numbers_in(docstring) == numbers


def test_every_case_has_its_test() -> None:
    """What users suffered from once must stay fixed: each case is named by the test that holds it."""
    named = {number for docstring in _docstrings() for number in numbers_in(docstring)}

    missing = {number: text for number, text in _expected().items() if number not in named}

    assert missing == {}
