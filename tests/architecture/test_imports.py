"""Who may import whom: the rules the linter holds, and that it holds them."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidegate
from tests.architecture.source import PACKAGES, ROOT, walk

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_wheel_owns_six_names() -> None:
    """Our packages have plain names at the top level: another one must not join them by accident."""
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)


def test_no_other_distribution_owns_our_names() -> None:
    """A dependency that brings its own `inbox` would be imported in place of ours, or ours in place of it."""
    owners = importlib.metadata.packages_distributions()

    others = [f"{owner}: {name}" for name in PACKAGES for owner in set(owners.get(name, [])) - {"tidegate"}]

    assert others == []
    assert "pytest" in owners, "the metadata of installed packages is there"


def test_examples_import_the_face_only() -> None:
    """What the example needs, every user needs: it comes from `tidegate` itself, or the face lacks something."""
    imported = {
        f"{each.file}: {name}"
        for each in walk("examples")
        for name in _imported(each.node)
        if name.split(".")[0] in PACKAGES and name.rsplit(".", 1)[0] != "tidegate"
    }

    assert imported == set()


def test_face_is_what_it_says() -> None:
    """`__all__` is the promise: every name in it is there, sorted, and nothing is public beside it."""
    assert sorted(tidegate.__all__, key=str) == tidegate.__all__
    assert [name for name in tidegate.__all__ if not hasattr(tidegate, name)] == []
    public = {name for name in dir(tidegate) if name[0] not in "_@" and not _is_module(name)}
    assert public - {"import_module", "TYPE_CHECKING"} == set(tidegate.__all__) - {"__version__"}


def test_face_gives_type_checkers_what_it_gives_programs() -> None:
    """Its names are imported on first use: an editor that is told another home shows another class."""
    (typed,) = [
        node
        for node in _statements("tidegate/__init__.py")
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told = {alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    for name, home in told.items():
        assert getattr(tidegate, name) is getattr(importlib.import_module(str(home)), name)
    assert set(told) == set(tidegate.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        _ = tidegate.Consumer  # type: ignore[attr-defined]


PLANTED = {
    "inbox/identity.py": ["import dlq.cause", "import aiokafka"],
    "projections/writes.py": ["import inbox.identity"],
    "consumers/routes.py": ["import tidegate.app"],
    "tidegate_kernel/clock.py": ["import consumers.batch"],
    "tidegate/jobs/declaration.py": ["import tidegate.commands.options", "import tidegate.console.http"],
    "tidegate/console/health.py": ["import tidegate.commands.signals"],
    "examples/shop/ledger/purchases.py": ["import examples.shop.revenue.job", "import aiokafka"],
}


@pytest.mark.timeout(240)
def test_linter_refuses_imports_against_the_direction(tmp_path: Path) -> None:
    """A linter whose configuration matches nothing is green for ever: each planted import must make it red."""
    for name in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert "0 broken" in _lint(tmp_path)

    for file, lines in PLANTED.items():
        module = tmp_path / file
        module.write_text(module.read_text(encoding="utf-8") + "".join(f"\n{line}" for line in lines))
    said = _lint(tmp_path)

    assert "5 broken" in said
    wanted = [
        f"{file.removesuffix('.py').replace('/', '.')} -> {line.removeprefix('import ')}"
        for file, lines in PLANTED.items()
        for line in lines
    ]
    assert [edge for edge in wanted if edge not in said] == []


def _lint(folder: Path) -> str:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(
        [*command, "--no-logo", "--no-cache"], cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    return " ".join((done.stdout + done.stderr).split())


def _imported(node: ast.AST) -> list[str]:
    """Full names of what an import statement brings: `from a.b import c` is a.b.c."""
    match node:
        case ast.Import(names=names):
            return [f"{alias.name}.*" for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [f"{module}.{alias.name}" for alias in names]
        case _:
            return []


def _statements(file: str) -> list[ast.stmt]:
    return ast.parse((ROOT / file).read_text(encoding="utf-8")).body


def _is_module(name: str) -> bool:
    return f"tidegate.{name}" in sys.modules
