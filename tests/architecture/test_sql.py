"""SQL stands in files, in one style, and each query is used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT, Found, walk
from tidegate_kernel.queries import load_queries

FILES = sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*.sql"))
KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        add all alter and any array as asc attach begin between by cascade case check column commit conflict
        constraint create cross current_date default delete desc distinct do drop else end except exists filter first
        for foreign from full generated group having identity if ilike in including index inner insert intersect into
        is join last lateral left like limit materialized not nothing null nulls on only or order outer over primary
        recursive references returning right schema select set table then truncate union unique update using view when
        where window with
        """,
    )
)

_STATEMENT = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE)\b.*\b(FROM|INTO|SET|AS)\b", re.DOTALL)


def test_keywords_are_upper_case() -> None:
    """Keywords and names are told apart at a glance, in every file alike."""
    lower = [
        f"{file.relative_to(ROOT)}: {word}"
        for file in FILES
        for word in re.findall(r"\b[a-z_]+\b", _code(file.read_text(encoding="utf-8")))
        if word in KEYWORDS
    ]

    assert lower == []
    assert len(FILES) > 5, "the files were not found"


def test_every_query_says_what_it_does() -> None:
    """The line below a query's name is for whoever meets it in pg_stat_statements."""
    silent = [
        f"{package}: {name}"
        for package in _query_packages()
        for name, text in load_queries(package).items()
        if not text.startswith("-- ")
    ]

    assert silent == []


def test_queries_and_code_know_the_same_names() -> None:
    """A query that nobody runs is not tested by anybody; a name that no file has is an error at the first call."""
    used: dict[str, set[str]] = {}
    for name, package in _loaded_names().items():
        used.setdefault(package, set()).update(_subscripts(name))
    held = {package: set(load_queries(package)) for package in _query_packages()}

    assert [name for package, names in held.items() for name in names - used.get(package, set())] == []
    assert [name for package, names in used.items() for name in names - held[package]] == []


def test_sql_stands_in_files() -> None:
    """A statement in the code is not prepared by the test that prepares them all; the few that stay are named here."""
    may_stay = {
        "tidegate/migrations/": "what it looks for may not be there yet",
        "tidegate/testing/databases.py": "databases cannot be made in a transaction or by parameters",
        "tidegate/stack/": "the servers' own questions",
        "projections/": "ClickHouse statements are built from the declared table",
        "tidegate_kernel/postgres.py": "asks the server about itself",
        "consumers/positions.py": "asks the server about itself",
        "consumers/isolation.py": "asks the server about itself",
    }
    inline = {
        each.place
        for each in walk(*PACKAGES)
        if isinstance(each.node, ast.Constant)
        and isinstance(each.node.value, str)
        and _STATEMENT.match(each.node.value)
        and not each.file.startswith(tuple(may_stay))
    }

    assert inline == set()


def _code(text: str) -> str:
    """Without comments, texts and quoted names."""
    return re.sub(r"--[^\n]*|'[^']*'|\"[^\"]*\"", "", text)


def _query_packages() -> list[str]:
    return [".".join(file.parent.relative_to(ROOT).parts) for file in FILES if file.name == "queries.sql"]


def _loaded_names() -> dict[tuple[str, str], str]:
    """(file, variable) → package, for every `VARIABLE = load_queries(package)` of a module."""
    loaded = {}
    for each in walk(*PACKAGES):
        match each.node:
            case ast.Assign(
                targets=[ast.Name(id=variable)], value=ast.Call(func=ast.Name(id="load_queries"), args=[given])
            ):
                loaded[each.file, variable] = _package(each, given)
            case _:
                continue
    return loaded


def _package(found: Found, given: ast.expr) -> str:
    if isinstance(given, ast.Constant):
        return str(given.value)
    assert ast.unparse(given) == "__package__", f"{found.place}: load_queries of what?"
    return ".".join(Path(found.file).parent.parts)


def _subscripts(name: tuple[str, str]) -> set[str]:
    file, variable = name
    return {
        str(each.node.slice.value)
        for each in walk(*PACKAGES)
        if each.file == file
        and isinstance(each.node, ast.Subscript)
        and isinstance(each.node.value, ast.Name)
        and each.node.value.id == variable
        and isinstance(each.node.slice, ast.Constant)
    }
