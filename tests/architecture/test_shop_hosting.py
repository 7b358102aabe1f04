"""What hosts the shop's work decides nothing about its business: it declares, and everything else is called.

The linter keeps business from importing hosting (`pyproject.toml`); here stands what no import shows.
"""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import ROOT, python_files

# What handlers, pure functions and the models that they take may know of Tidegate.
WORDS_OF_THE_BUSINESS = {
    "Context",
    "Delete",
    "Event",
    "HttpProvider",
    "Page",
    "Pull",
    "Pulled",
    "Rejected",
    "RetryLater",
    "Scope",
    "Text",
    "Tombstone",
    "Upsert",
    "Write",
}
# Whatever takes one of several ways, or works through items one by one, or asks the database.
DECISIONS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.Match,
    ast.Raise,
    ast.Compare,
    ast.BoolOp,
    ast.BinOp,
    ast.comprehension,
    ast.Await,
    ast.AsyncFunctionDef,
)


def _modules() -> dict[str, ast.Module]:
    """The shop's modules, without the stories that are played with it."""
    files = [file for file in python_files("examples/shop") if "demo" not in file.relative_to(ROOT).as_posix()]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def _is_hosting(name: str) -> bool:
    return name.endswith("/job.py") or name in ("examples/shop/app.py", "examples/shop/topics.py")


def _decisions(tree: ast.Module) -> list[str]:
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, DECISIONS)]


def test_hosting_of_the_shop_decides_nothing() -> None:
    """It has a trigger and builds a request for the mediator. Rules of the business stand where they are tested."""
    found = {name: _decisions(tree) for name, tree in _modules().items() if _is_hosting(name)}

    assert {name: decisions for name, decisions in found.items() if decisions} == {}
    assert len(found) > 8, "the search finds what is there"


@pytest.mark.parametrize(
    "planted", ["if order.cents > 10: refuse()", "total = price * count", "rows = [x for x in orders if x.paid]"]
)
def test_decision_in_the_hosting_is_found(planted: str) -> None:
    """A search that finds nothing would be green for ever."""
    assert _decisions(ast.parse(planted))


def test_business_of_the_shop_knows_nothing_that_hosts_it() -> None:
    """Neither App nor jobs, schedules, topics, sinks: it could be hosted by something else."""
    known = {
        f"{name}: {alias.name}"
        for name, tree in _modules().items()
        if not _is_hosting(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tidegate"
        for alias in node.names
        if alias.name not in WORDS_OF_THE_BUSINESS
    }

    assert known == set()
