"""Where the code changes what Postgres holds: which queries do, which functions run them, and under whose permission.

A place is guarded if it stands inside an `async with permitted(...)` block, or in a function that is only ever called
from guarded places. Names starting with an underscore are looked for in their own file, others everywhere.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture.source import PACKAGES, ROOT, python_files
from tidegate_kernel.queries import load_queries

_CHANGES = re.compile(r"\b(INSERT\s+INTO|DELETE\s+FROM|TRUNCATE|MERGE\s+INTO|(?<!FOR )(?<!FOR NO KEY )UPDATE)\b")
_CREATE_FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION (tidegate\.\w+)\s*\((.*?)(?=\nCREATE |\Z)", re.DOTALL)
_DDL = re.compile(r"\b(ALTER|DROP|CREATE)\s+TABLE\b|\bEXECUTE\s+format\b", re.IGNORECASE)


class Function(NamedTuple):
    """A function by its file and its dotted name."""

    file: str
    name: str

    @property
    def word(self) -> str:
        return self.name.rpartition(".")[2]


class Use(NamedTuple):
    """A place that names something: `what` is a query, a function's word, or a call that writes."""

    what: str
    by: Function
    is_permitted: bool


@cache
def changing_queries() -> frozenset[tuple[str, str]]:
    """(package, name) of every query that changes something, also through a function of the schema."""
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("queries.sql")]
    packages = [".".join(file.parent.relative_to(ROOT).parts) for file in files]
    return frozenset((p, name) for p in packages for name, text in load_queries(p).items() if _changes(text))


@cache
def used_queries() -> frozenset[tuple[str, str]]:
    """(package, name) of every query that some function names."""
    pairs = [use.what.partition(": ") for use in _uses() if ": " in use.what]
    return frozenset((package, name) for package, _, name in pairs)


@cache
def unguarded_changes() -> frozenset[Function]:
    """The functions that change something and can be reached without a permission."""
    return frozenset(use.by for use in _uses() if use.what in _writes() and not _is_guarded(use, ()))


@cache
def guarded_changes() -> frozenset[Function]:
    """The functions that change something by permission alone."""
    changing = {use.by for use in _uses() if use.what in _writes()}
    return frozenset(changing - unguarded_changes())


def _is_guarded(use: Use, seen: tuple[Function, ...]) -> bool:
    if use.is_permitted or use.by in seen:
        return True
    calls = [call for call in _calls().get(use.by.word, ()) if _may_mean(call, use.by)]
    return bool(calls) and all(_is_guarded(call, (*seen, use.by)) for call in calls)


def _may_mean(call: Use, function: Function) -> bool:
    return call.by != function and (not function.word.startswith("_") or call.by.file == function.file)


@cache
def _calls() -> dict[str, list[Use]]:
    calls: dict[str, list[Use]] = defaultdict(list)
    for use in _uses():
        calls[use.what].append(use)
    return calls


@cache
def _writes() -> frozenset[str]:
    return frozenset({"copy_records_to_table", *(f"{package}: {name}" for package, name in changing_queries())})


@cache
def _uses() -> tuple[Use, ...]:
    return tuple(use for file in python_files(*PACKAGES) for use in _uses_in(file))


def _uses_in(file: Path) -> Iterator[Use]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    place = file.relative_to(ROOT).as_posix()
    loaded = dict(_loaded(tree, ".".join(Path(place).parent.parts)))
    yield from _below(tree, Function(place, ""), loaded, is_permitted=False)


def _below(node: ast.AST, inside: Function, loaded: dict[str, str], *, is_permitted: bool) -> Iterator[Use]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                function = Function(inside.file, f"{inside.name}.{name}".lstrip("."))
                yield from _below(child, function, loaded, is_permitted=False)
                continue
            case ast.AsyncWith() if any(_is_permission(item.context_expr) for item in child.items):
                yield from _below(child, inside, loaded, is_permitted=True)
                continue
            case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=str() as name)) if (
                variable in loaded
            ):
                yield Use(f"{loaded[variable]}: {name}", inside, is_permitted)
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                yield Use(name, inside, is_permitted)
            case _:
                pass
        yield from _below(child, inside, loaded, is_permitted=is_permitted)


def _is_permission(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "permitted"


def _loaded(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    """Variables that hold queries, and of which package: the one named, else the module's own."""
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=variable)],
                value=ast.Call(func=ast.Name(id="load_queries"), args=[ast.Constant(value=str() as named)]),
            ):
                yield variable, named
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(func=ast.Name(id="load_queries"))):
                yield variable, package
            case _:
                continue


def _changes(text: str) -> bool:
    code = _code(text)
    return bool(_CHANGES.search(code)) or any(f"{name}(" in code for name in _changing_functions())


@cache
def _changing_functions() -> frozenset[str]:
    """Functions of the schema that change something themselves."""
    versions = sorted((ROOT / "tidegate" / "migrations" / "versions").glob("*.sql"))
    found = [match for file in versions for match in _CREATE_FUNCTION.findall(file.read_text(encoding="utf-8"))]
    return frozenset(name for name, body in found if _CHANGES.search(_code(body)) or _DDL.search(_code(body)))


def _code(text: str) -> str:
    return re.sub(r"--[^\n]*|'[^']*'", "", text)
