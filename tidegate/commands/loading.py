"""Finds the application that a command works for."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tidegate.app import App
from tidegate.commands.options import log_to_stderr
from tidegate_kernel.errors import Misconfigured

# Where our packages are installed, and their top-level names.
_HOME = Path(__file__).resolve().parents[2]
_OURS = ("tidegate_kernel", "consumers", "inbox", "dlq", "projections", "tidegate")


def load_app(reference: str | None) -> App:
    """Returns the App at `module:attribute`, with the working directory on the import path.

    Raises Misconfigured naming what is wrong: the reference, the module, the attribute, or the line that raised.
    """
    if not reference:
        raise Misconfigured("no application given; name it with --app module:attribute or TIDEGATE_APP")
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute.isidentifier():
        raise Misconfigured(f"application {reference!r} is not of the form module:attribute, as in 'shop.app:app'")
    refuse_shadows()
    log_to_stderr()
    module = _import(module_name, reference)
    with _explained(reference):  # a module may have a __getattr__ of its own
        found = getattr(module, attribute, None)
    if found is None:
        raise Misconfigured(f"application {reference!r}: module {module_name!r} has no attribute {attribute!r}")
    if not isinstance(found, App):
        raise Misconfigured(f"application {reference!r} is of class {type(found).__name__!r}, not a tidegate.App")
    return found


def refuse_shadows() -> None:
    """Raises Misconfigured if a module in the working directory has one of our own top-level names.

    Python imports such a module instead of ours (or ours instead of it), and what breaks then names neither.
    """
    for folder in _import_folders():
        if folder == _HOME:
            continue
        for name in _OURS:
            if (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py")):
                raise Misconfigured(
                    f"{folder / name} has the name of a package of Tidegate's own ({', '.join(sorted(_OURS))}); "
                    "rename it, or move it into a package of yours"
                )


def _import_folders() -> list[Path]:
    """Where a user's module would be found before ours: the working directory and PYTHONPATH come first in the path."""
    home = str(_HOME)
    before_ours = sys.path[: sys.path.index(home)] if home in sys.path else []
    return [Path.cwd(), *(Path(entry).resolve() for entry in before_ours if entry)]


def _import(module_name: str, reference: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not _exists(module_name, reference):
        raise Misconfigured(f"application {reference!r}: there is no module {module_name!r} (looked in {here})")
    with _explained(reference):
        return importlib.import_module(module_name)


def _exists(module_name: str, reference: str) -> bool:
    parent, _, _ = module_name.rpartition(".")
    if parent and not _exists(parent, reference):
        return False
    with _explained(reference):
        return find_spec(module_name) is not None


@contextmanager
def _explained(reference: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        # A user's module may raise anything while it is imported; the line that did it is what they need to know.
        raise Misconfigured(f"application {reference!r}: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """`file:line` of the user's code that raised, and what."""
    text = str(error).splitlines()
    what = text[0] if isinstance(error, Misconfigured) else f"{type(error).__name__}: {text[0] if text else ''}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {what}" if frames else what


def _is_theirs(filename: str) -> bool:
    """Whether it is a file of the service: below the working directory, not installed, not one of ours."""
    file = Path(filename)
    is_installed = "site-packages" in file.parts
    return (
        file.is_relative_to(Path.cwd()) and not is_installed and not any(file.is_relative_to(p) for p in _our_folders())
    )


def _our_folders() -> list[Path]:
    return [_HOME / name for name in _OURS]
