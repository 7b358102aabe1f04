"""`--app module:attribute`: every way in which it can be wrong is one sentence that names what and where."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tidegate.commands.loading import load_app
from tidegate_kernel.errors import Misconfigured

_GOOD = "from tidegate import App\napp = App(service='shop', owner='o', jobs=[])\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A service's folder as the working directory; the modules it defines are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    structlog.reset_defaults()  # what the application logs went to the standard error of this test


def _refusal(reference: str | None) -> str:
    with pytest.raises(Misconfigured) as refused:
        load_app(reference)
    return str(refused.value)


def test_app_in_the_working_directory_is_found(folder: Path) -> None:
    """The console script does not look there by itself, and the README starts there."""
    (folder / "good_shop.py").write_text(_GOOD)
    assert load_app("good_shop:app").service == "shop"


def test_app_in_a_package_is_found(folder: Path) -> None:
    """Services are packages; this is how a deployment names its application."""
    (folder / "deep_shop").mkdir()
    (folder / "deep_shop" / "main.py").write_text(_GOOD)
    assert load_app("deep_shop.main:app").service == "shop"


@pytest.mark.parametrize("reference", [None, ""])
def test_missing_reference_names_both_ways_to_give_it(reference: str | None) -> None:
    """The first command that anybody types lacks it."""
    message = _refusal(reference)
    assert "--app module:attribute" in message
    assert "TIDEGATE_APP" in message


@pytest.mark.parametrize("reference", ["shop", "shop:", ":app", "shop:a b"])
def test_malformed_reference_shows_the_form(reference: str) -> None:
    """An example is quicker than a grammar."""
    message = _refusal(reference)
    assert repr(reference) in message
    assert "module:attribute" in message


@pytest.mark.parametrize("module", ["no_such_shop", "no_such_shop.main"])
def test_missing_module_is_named_with_the_place_looked_in(folder: Path, module: str) -> None:
    """Most often the directory is the wrong one, not the name."""
    message = _refusal(f"{module}:app")
    assert f"no module {module!r}" in message or "no module 'no_such_shop'" in message
    assert str(folder) in message


def test_module_that_lacks_a_dependency_is_not_called_missing(folder: Path) -> None:
    """The module is there; what it imports is not. Saying 'no module shop' would send the reader the wrong way."""
    (folder / "hungry_shop.py").write_text("import os\nimport nobody_has_this\n")
    message = _refusal("hungry_shop:app")
    assert "hungry_shop.py:2" in message
    assert "No module named 'nobody_has_this'" in message


def test_missing_attribute_is_named(folder: Path) -> None:
    """A module may hold several applications."""
    (folder / "bare_shop.py").write_text(_GOOD)
    assert "'bare_shop' has no attribute 'application'" in _refusal("bare_shop:application")


def test_attribute_that_is_no_app_is_named_with_its_class(folder: Path) -> None:
    """A function that makes the App looks like one in the command."""
    (folder / "dict_shop.py").write_text("app = {}\n")
    assert "of class 'dict'" in _refusal("dict_shop:app")


def test_module_that_raises_is_named_with_file_and_line(folder: Path) -> None:
    """It is the user's code; our own frames would only hide the place."""
    (folder / "angry_shop.py").write_text("def start():\n    return 1 / 0\n\n\nstart()\n")
    assert f"{folder / 'angry_shop.py'}:2: ZeroDivisionError: division by zero" in _refusal("angry_shop:app")


def test_module_with_a_syntax_error_is_named_with_file_and_line(folder: Path) -> None:
    """As above, while a file is being written under `tidegate dev`."""
    (folder / "broken_shop.py").write_text("x = 1\napp = (\n")
    assert f"{folder / 'broken_shop.py'}:2: SyntaxError" in _refusal("broken_shop:app")


def test_attribute_that_is_made_on_demand_and_fails_is_named_with_file_and_line(folder: Path) -> None:
    """A module with a `__getattr__` runs the user's code after its import."""
    (folder / "lazy_shop.py").write_text("def __getattr__(name):\n    raise RuntimeError('no database')\n")
    assert f"{folder / 'lazy_shop.py'}:2: RuntimeError: no database" in _refusal("lazy_shop:app")


def test_module_that_is_no_text_is_named(folder: Path) -> None:
    """Python knows neither file nor line of what it cannot even read."""
    (folder / "binary_shop.py").write_bytes(b"app = 1\0\n")
    message = _refusal("binary_shop:app")
    assert "'binary_shop:app'" in message
    assert "null bytes" in message
    assert "None" not in message


def test_wrong_declaration_is_named_with_the_user_s_line(folder: Path) -> None:
    """The line is the user's, not one of ours, although ours raised."""
    (folder / "wrong_shop.py").write_text(
        "from tidegate import App\n\napp = App(service='No Good', owner='o', jobs=[])\n"
    )
    message = _refusal("wrong_shop:app")
    assert f"{folder / 'wrong_shop.py'}:3: " in message
    assert "App.service 'No Good'" in message


@pytest.mark.parametrize("name", ["consumers", "inbox", "dlq", "projections", "tidegate_kernel"])
def test_folder_with_a_name_of_ours_is_refused(folder: Path, name: str) -> None:
    """Python would import one of the two for both, and what breaks then names neither."""
    (folder / name).mkdir()
    (folder / name / "orders.py").write_text("")
    (folder / "shadow_shop.py").write_text(_GOOD)
    message = _refusal("shadow_shop:app")
    assert str(folder / name) in message
    assert "rename it" in message


def test_folder_of_ours_without_modules_is_no_shadow(folder: Path) -> None:
    """A folder `inbox/` of mails or fixtures does nobody harm."""
    (folder / "inbox").mkdir()
    (folder / "inbox" / "letter.eml").write_text("")
    (folder / "mail_shop.py").write_text(_GOOD)
    assert load_app("mail_shop:app").service == "shop"
