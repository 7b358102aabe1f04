"""The repository's own source, as the architecture tests read it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections")
"""What the wheel owns, by top-level name."""


class Found(NamedTuple):
    """A node of a module's tree and where it stands."""

    file: str
    function: str
    line: int
    node: ast.AST

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that belongs to the repository: tracked, or new and not ignored. Without git: every file there is."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        names = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        names = list(ROOT.rglob("*"))
    return tuple(file for file in names if file.is_file())


def python_files(*folders: str) -> list[Path]:
    """The modules below some folders of the repository."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def walk(*folders: str) -> Iterator[Found]:
    """Every node of every module, with the innermost function (dotted with its classes) that holds it."""
    for file in python_files(*folders):
        yield from _nodes(file)


@cache
def _nodes(file: Path) -> tuple[Found, ...]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return tuple(_below(tree, file.relative_to(ROOT).as_posix(), ()))


def _below(node: ast.AST, file: str, inside: tuple[str, ...]) -> Iterator[Found]:
    for child in ast.iter_child_nodes(node):
        yield Found(file, ".".join(inside), getattr(child, "lineno", 0), child)
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield from _below(child, file, (*inside, name))
            case _:
                yield from _below(child, file, inside)
